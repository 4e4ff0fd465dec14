# `make demo` and `make test` install everything they need (Debian packages, a virtual environment
# in .venv, the build in build/make) and can be run again at any time. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

VENV ?= .venv
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# The same for everybody, so that what `make demo` compiled serves `make test` and CI finds nothing of its own.
WERROR ?= ON
TRACE ?= examples/traces/resnet50_num_workers_0.json.gz
TORCH ?= torch==2.13.0
FUZZ_SECONDS ?= 600
CI_FUZZ_SECONDS ?= 60
BIN := $(VENV)/bin
BUILD := build/make
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# With a line of progress, for what takes minutes.
PIP_INSTALL := $(BIN)/python tools/with_progress.py build/install.log -- $(BIN)/python -m pip install -v
RUFF := 'ruff>=0.6,<1'
CPP_FILES := git ls-files 'cpp/*.[ch]pp' 'tests/cpp/*.[ch]pp' 'benchmarks/cpp/*.[ch]pp' '*.cu'
# One build folder serves the extension module and the C++ tests.
PIP_BUILD := --no-build-isolation \
  --config-settings=build-dir=$(BUILD) \
  --config-settings=cmake.build-type=Release \
  --config-settings=cmake.define.TRACEAP_WERROR=$(WERROR) \
  --config-settings=cmake.define.TRACEAP_BUILD_MODEL=AUTO
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# What one clone compiled serves another at another place.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal --durations=30

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.PHONY: demo
demo: install ## diagnose the bundled ResNet-50 trace in the terminal, write out/resnet50.html
	@echo "==> $(BIN)/torchtraceap diagnose $(TRACE) --html out/resnet50.html"
	@mkdir -p out
	@$(BIN)/torchtraceap diagnose $(TRACE) --html out/resnet50.html
	@echo "==> The same as a page: file://$(CURDIR)/out/resnet50.html"
	@echo "==> What else it does:"
	@echo "    $(BIN)/torchtraceap --help"
	@echo "    $(BIN)/torchtraceap ops $(TRACE) --by category"
	@echo "    $(BIN)/torchtraceap simulate $(TRACE)"
	@echo "    $(BIN)/torchtraceap diff $(TRACE) examples/traces/resnet50_num_workers_4.json.gz --by cause"

.PHONY: test
test: lint test-cpp test-python ## lint, C++ tests, the fast Python tests: about ten minutes of two cores after the build
	@echo "==> the tests passed; \`make check\` runs the slow ones too"

.PHONY: check
check: test test-asan test-tsan test-slow test-wheel demo cuda-check ## what a change has to pass: make test, sanitizers, fuzzing, slow tests, wheel, demo
	@echo "==> all checks passed"

.PHONY: venv
venv: ## make the virtual environment, with the build tools in it
	@tools/make_venv.sh $(VENV)
	@$(PIP) install 'scikit-build-core>=0.11,<2' 'pybind11>=3,<4'

.PHONY: install
install: venv ## build and install the package into the virtual environment
	@tools/install_packages.sh build
	@echo "==> building and installing torchtraceap into $(VENV) (build folder $(BUILD))"
	@$(PIP_INSTALL) $(PIP_BUILD) .

# The networks are built where torch is found, so it comes first.
.PHONY: install-test
install-test: venv torch ## the same with everything that the tests need
	@tools/install_packages.sh build test
	@echo "==> building and installing torchtraceap with its test tools into $(VENV) (build folder $(BUILD))"
	@$(PIP_INSTALL) $(PIP_BUILD) --config-settings=cmake.define.TRACEAP_BUILD_TESTS=ON '.[test,lint,fuzz]'

# What records, replays, predicts and trains uses torch, and the networks its C++ libraries. Which
# build of it pip takes is the machine's own affair: where its default is a large CUDA build, install
# another by hand first, or set TORCH= to do without.
.PHONY: torch
torch: venv ## install torch for the tests of what uses it, and to build the networks
ifneq ($(strip $(TORCH)),)
	@$(BIN)/python -c 'import torch' 2>/dev/null || { \
	  echo "==> installing $(TORCH) (used by tests, and by the networks)"; $(PIP) install '$(TORCH)'; }
endif

.PHONY: test-cpp
test-cpp: install-test ## C++ tests
	@echo "==> C++ tests"
	@cmake --build $(BUILD) --parallel $(JOBS) -- --quiet
	@ctest --test-dir $(BUILD) --parallel $(JOBS) --output-on-failure --no-tests=error

.PHONY: build-asan
build-asan: install-test
	@tools/install_packages.sh check
	@cmake --preset asan -DTRACEAP_WERROR=$(WERROR) -DPython_EXECUTABLE=$(abspath $(BIN)/python) >/dev/null
	@cmake --build build/asan --parallel $(JOBS) -- --quiet

.PHONY: test-asan
test-asan: build-asan ## C++ tests and hostile traces with address and undefined-behaviour sanitizers, then a minute of fuzzing
	@echo "==> C++ tests under sanitizers"
	@ctest --test-dir build/asan --parallel $(JOBS) --output-on-failure --no-tests=error
	@echo "==> hostile traces, the extension under sanitizers"
	@cmake --build build/asan --parallel $(JOBS) --target python_modules -- --quiet
	@tools/test_asan_python.sh $(BIN)/python build/asan
	@echo "==> fuzzing for $(CI_FUZZ_SECONDS) s"
	@$(BIN)/python tools/fuzz --jobs $(JOBS) --seconds $(CI_FUZZ_SECONDS)

.PHONY: fuzz
fuzz: build-asan ## ten minutes of fuzzing over all targets (FUZZ_SECONDS), other inputs each time
	@$(BIN)/python tools/fuzz --jobs $(JOBS) --seconds $(FUZZ_SECONDS) --seed 0 --merge

.PHONY: test-tsan
test-tsan: ## C++ tests of what several threads run, with the thread sanitizer
	@tools/install_packages.sh build test check
	@echo "==> C++ tests under the thread sanitizer"
	@cmake --preset tsan -DTRACEAP_WERROR=$(WERROR) >/dev/null
	@cmake --build --preset tsan --parallel $(JOBS) -- --quiet
	@ctest --preset tsan --parallel $(JOBS) --no-tests=error

.PHONY: test-python
test-python: install-test ## the fast Python tests
	@echo "==> Python tests"
	@mkdir -p out
	@$(PYTEST) -m 'not (slow or browser or notebook or proof)' 2>&1 | tee out/pytest.log

.PHONY: test-slow
test-slow: install-test ## the Python tests that take long, drive a browser or run a notebook
	@tools/install_packages.sh check
	@$(PIP) install 'torchtraceap[local-model]' || echo "==> no local model: its tests are skipped"
	@echo "==> slow Python tests"
	@mkdir -p out
	@$(PYTEST) -m '(slow or browser or notebook) and not proof' 2>&1 | tee out/pytest-slow.log

.PHONY: docs
docs: install-test ## the documentation as a site in build/docs/html, with executed notebooks; warnings are errors
	@$(PIP) install 'torchtraceap[docs]'
	@$(BIN)/python tools/build_docs.py

.PHONY: proofs
proofs: install-test ## tests of accuracy on held-out data outside of the repository, in minutes
	@echo "==> proofs"
	@$(BIN)/python -m pytest -m proof --numprocesses $(JOBS)

# Without the networks, which need torch beside the package.
.PHONY: test-wheel
test-wheel: install-test ## install a wheel of what was built into an empty virtual environment, and run it there
	@echo "==> the wheel in an empty environment"
	@rm -rf build/wheel
	@$(PIP) wheel --no-deps --wheel-dir build/wheel $(subst MODEL=AUTO,MODEL=OFF,$(PIP_BUILD)) \
	  --config-settings=cmake.define.TRACEAP_BUILD_TESTS=ON .
	@tools/check_wheel.sh $(BIN)/python build/wheel/torchtraceap-*.whl $(TRACE)

# Code for GPUs is compiled here and runs nowhere: `benchmarks/device/all.sh` is for that. Where the virtual
# environment has torch, of any build, the networks are compiled with the calls of the kernels.
NVCC ?= $(shell command -v nvcc || ls /usr/local/cuda*/bin/nvcc 2>/dev/null | tail -n 1)
.PHONY: cuda-check
cuda-check: ## compile the kernels for GPUs of three generations and what calls them, where there is nvcc
ifeq ($(strip $(NVCC)),)
	@echo "==> kernels for GPUs: skipped, there is no nvcc (set NVCC)"
else
	@tools/install_packages.sh build
	@echo "==> kernels for GPUs, by $(NVCC)"
	@mkdir -p build
	@cmake -S . -B build/cuda -G Ninja -DCMAKE_CUDA_COMPILER=$(NVCC) -DTRACEAP_CUDA=ON -DTRACEAP_WERROR=$(WERROR) \
	  $(if $(wildcard $(VENV)/lib/python3*/site-packages/torch),-DTRACEAP_BUILD_PYTHON=ON \
	    -DPython_EXECUTABLE=$(abspath $(BIN)/python),-DTRACEAP_BUILD_PYTHON=OFF) \
	  -DCMAKE_OPTIMIZE_DEPENDENCIES=ON >build/cuda.log || { cat build/cuda.log; exit 1; }
	@cmake --build build/cuda --parallel $(JOBS) --target cuda_check -- --quiet
endif

.PHONY: lint
lint: style types ## everything that needs no test run

.PHONY: style
style: venv ## format, ruff, layers: what needs no build
	@tools/install_packages.sh format
	@$(PIP) install $(RUFF)
	@echo "==> ruff, clang-format, layers"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(CPP_FILES) | xargs clang-format --dry-run -Werror
	@$(BIN)/python tools/check_layers.py

.PHONY: types
types: install-test ## mypy, and whether the stub is that of the built module
	@echo "==> mypy, stub"
	@$(BIN)/mypy
	@$(BIN)/python tools/update_stubs.py --check

.PHONY: format
format: venv ## format C++ and Python in place
	@tools/install_packages.sh format
	@$(PIP) install $(RUFF)
	@$(CPP_FILES) | xargs clang-format -i
	@$(BIN)/ruff format .

.PHONY: tidy
tidy: ## clang-tidy on the C++ sources
	@tools/install_packages.sh build test tidy
	@cmake --preset tidy -DTRACEAP_BUILD_PYTHON=OFF >/dev/null
	@cmake --build build/tidy --parallel $(JOBS)

.PHONY: bench
bench: venv ## compare load and diagnose with other tools (docs/results/performance.md); takes minutes
	@tools/install_packages.sh build bench
	@$(PIP) install $(PIP_BUILD) '.[peers]'
	@cmake --preset release -DTRACEAP_BUILD_PYTHON=OFF -DTRACEAP_BUILD_BENCHMARKS=ON >/dev/null
	@cmake --build build/release --parallel $(JOBS) --target floor
	@$(BIN)/python benchmarks/load/run.py
	@$(BIN)/python benchmarks/diagnose/run.py
	@$(BIN)/python benchmarks/report/run.py

.PHONY: wheel
wheel: venv ## build the source archive and manylinux wheels into dist/, for PYTHONS (or each Python found), and try them
	@tools/install_packages.sh build wheel
	@tools/build_wheels.sh dist $(or $(PYTHONS),$(shell tools/find_pythons.sh))

.PHONY: clean
clean: ## remove builds, the virtual environment and outputs
	rm -rf build $(VENV) out dist
