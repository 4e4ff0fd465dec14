#!/usr/bin/env bash
# Everything that needs a GPU, on a machine that is lent for minutes, starts bare and reaches no registry of packages.
#
#   benchmarks/device/all.sh pack            here: builds what is to be carried along, into build/device/pack
#   benchmarks/device/all.sh [OPTION ...]    there: runs the stages of all.py, by default within 9 minutes
#   benchmarks/device/all.sh keep FOLDER     here: unpacks what came back into build/device/back
#
# `pack` needs nvcc and a Python of the machine's version with its headers (BUILD_PYTHON, default python3.12); it takes
# torch of the machine's version (TORCH, default 2.11.0) from PyPI, to link with, into build/device/venv. DATASET=FOLDER
# adds a data set to train on; without it training takes examples/mini_dataset. What it makes:
#   built/       the core and the networks, with the libraries that they load
#   cuda_parity  the kernels against their twins; emulated.so: kernels of emulated collectives (both for ARCH, sm_90)
#   wheels/      what that machine lacks (WHEELS, none by default)
#   done/        what `keep` left: complete stages are not run again
# On a CPU: TINY=1 DEVICE=cpu benchmarks/device/all.sh runs every stage with small sizes, without a pack where the
# package can be imported.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PACK=${PACK:-$PWD/build/device/pack}
PYTHON=${PYTHON:-python3}

pack() {
  local python=${BUILD_PYTHON:-python3.12} torch=${TORCH:-2.11.0} arch=${ARCH:-sm_90} venv=$PWD/build/device/venv
  local nvcc=${NVCC:-$(command -v nvcc || ls /usr/local/cuda*/bin/nvcc 2> /dev/null | tail -n 1 || true)}
  [ -n "$nvcc" ] || { echo "there is no nvcc (set NVCC)" >&2; exit 2; }
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install -q --no-deps "torch==$torch" 'pybind11>=3,<4'
  # As deep below the root as the other builds, so that ccache finds what they compiled.
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
  cmake -S . -B build/device-core -DCMAKE_BUILD_TYPE=Release -DTRACEAP_BUILD_MODEL=ON \
    -DTRACEAP_CUDA=ON -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_ARCHITECTURES="${arch#sm_}-real" \
    -DPython_EXECUTABLE="$venv/bin/python" > /dev/null
  cmake --build build/device-core --parallel "$(nproc)" --target python_modules
  mkdir -p "$PACK/built/_model" "$PACK/built/lib"
  local suffix
  suffix=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
  cp "python/torchtraceap/_core$suffix" "$PACK/built"
  cp "python/torchtraceap/_model/native$suffix" "$PACK/built/_model"
  ldd "$PACK/built/_core$suffix" | sed -nE 's/.*=> ([^ ]*lib(simdjson|isal|zstd|z)\.so[^ ]*).*/\1/p' |
    xargs -r cp -L -t "$PACK/built/lib"
  "$venv/bin/python" - "$torch" "$(git rev-parse HEAD)" > "$PACK/built.json" <<'ABOUT'
import json, sys
torch = ".".join(sys.argv[1].split(".")[:2])
print(json.dumps({"python": "%d.%d" % sys.version_info[:2], "torch": torch, "commit": sys.argv[2]}))
ABOUT
  "$nvcc" -std=c++20 -O3 --expt-relaxed-constexpr -Icpp -arch="$arch" -o "$PACK/cuda_parity" \
    cpp/traceap/cuda/on_gpu.cu cpp/traceap/cuda/on_cpu.cpp benchmarks/device/cuda_parity.cu
  "$nvcc" -std=c++17 -O2 -shared -Xcompiler -fPIC -arch="$arch" -o "$PACK/emulated.so" \
    python/torchtraceap/lab/collection/emulated/kernels.cu
  if [ -n "${WHEELS:-}" ]; then
    # shellcheck disable=SC2086
    "$venv/bin/python" -m pip download -q --no-deps --only-binary=:all: -d "$PACK/wheels" $WHEELS
  fi
  [ -z "${DATASET:-}" ] || { rm -rf "$PACK/dataset"; cp -r "$DATASET" "$PACK/dataset"; }
  du -sh "$PACK"
}

run() {
  local site=/tmp/torchtraceap-site wheel
  mkdir -p "$site"
  for wheel in "$PACK"/wheels/*.whl; do
    [ ! -f "$wheel" ] || "$PYTHON" -m zipfile -e "$wheel" "$site"
  done
  if [ -d "$PACK/built" ]; then
    cp "$PACK"/built/*.so python/torchtraceap
    cp "$PACK"/built/_model/*.so python/torchtraceap/_model
    export LD_LIBRARY_PATH=$PACK/built/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  fi
  export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 CUDA_PARITY=$PACK/cuda_parity
  PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
  export PYTHONPATH
  "$PYTHON" -c 'import torchtraceap._core' 2> /dev/null || PYTHONPATH=$PWD/python:$PYTHONPATH
  # The networks load the libraries of the torch that is here.
  local torch
  torch=$("$PYTHON" -c 'import importlib.util as u; found = u.find_spec("torch")
print(found.submodule_search_locations[0] if found else "")')
  export LD_LIBRARY_PATH=$torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  [ ! -f "$PACK/emulated.so" ] || export TORCHTRACEAP_EMULATED_KERNELS=$PACK/emulated.so
  exec "$PYTHON" benchmarks/device/all.py ${DEVICE:+--device "$DEVICE"} ${TINY:+--tiny} ${OUT:+--out "$OUT"} "$@"
}

case "${1:-}" in
  pack) pack ;;
  keep) exec "$PYTHON" benchmarks/device/all.py keep "${2:?the folder with results.tar.0}" ;;
  *) run "$@" ;;
esac
