#!/usr/bin/env bash
# Runs tests against the extension of a sanitizer build: tools/test_asan_python.sh PYTHON BUILD [TEST...]
# By default those that hand the core what it should not be handed: the sanitizers make Python slow.
set -euo pipefail

python=$1
build=$(realpath "$2")
tests=("${@:3}")
root=$(cd "$(dirname "$0")/.." && pwd)
if [ ${#tests[@]} -eq 0 ]; then
  tests=("$root"/tests/python/*/test_{hostile,bindings,border,arg_columns,properties,analysis_corners,ranks_corners}.py)
fi

# The package as it stands, around the extension of the build.
find "$build/python/torchtraceap" -mindepth 1 ! -name '_core*.so' -delete
tar --create --directory "$root/python" --exclude='_core*.so' --exclude=__pycache__ torchtraceap |
  tar --extract --directory "$build/python"

# The runtime must come before all else, and libstdc++ with it, or the first C++ exception aborts.
# Python itself gives back little at its end, so leaks are not looked for.
cd "$root"
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=$build/python
preload="$(clang++ -print-file-name=libclang_rt.asan-x86_64.so) $(g++ -print-file-name=libstdc++.so)"
loaded=$(LD_PRELOAD=$preload "$python" -c 'import torchtraceap._core as core; print(core.__file__)')
if [[ $loaded != "$build"/* ]]; then
  echo "the extension of $build was expected, $loaded was loaded" >&2
  exit 1
fi
LD_PRELOAD=$preload "$python" -m pytest -q -p no:cacheprovider "${tests[@]}"
