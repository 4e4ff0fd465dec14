#!/usr/bin/env bash
# The package's compiled core for the Python of a machine that reaches no registry of packages.
#
#   benchmarks/device/core.sh pack     where it was installed from source (Debian or Ubuntu): copies
#                                      the libraries that a build needs to build/device/pack, which is
#                                      to be carried along; WHEELS="diffusers timm" adds those wheels
#   benchmarks/device/core.sh          on the other machine: builds the core, if it can't be imported,
#                                      with CMake, a C++20 compiler and the headers of Python
#
# The layers below Python take most of the time: two to three minutes on 16 cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
PACK=$PWD/build/device/pack
PYTHON=${PYTHON:-python3}
WHEELS=${WHEELS:-}
FOR_PYTHON=${FOR_PYTHON:-3.12}
LIBRARIES=/usr/lib/x86_64-linux-gnu

pack() {
  local packages=(libsimdjson-dev libisal-dev libzstd-dev zlib1g-dev libeigen3-dev xtl-dev
                  libxtensor-dev nlohmann-json3-dev)
  rm -rf "$PACK"
  mkdir -p "$PACK/root" "$PACK/wheels"
  {
    dpkg-query --listfiles "${packages[@]}" | grep -v /share/doc
    ls "$LIBRARIES"/lib{simdjson,isal,zstd,z,pkgconf}.so*
    readlink -f "$(command -v pkg-config)"
  } | sort -u | while read -r path; do
    if [ -f "$path" ]; then echo "${path#/}"; fi
  done | tar -C / --dereference -cf - -T - | tar -C "$PACK/root" -xf -
  cat > "$PACK/pkg-config" <<'RUN'
#!/bin/sh
root=$(dirname "$(readlink -f "$0")")/root
lib=$root/usr/lib/x86_64-linux-gnu
export PKG_CONFIG_SYSROOT_DIR="$root" PKG_CONFIG_LIBDIR="$lib/pkgconfig:$root/usr/share/pkgconfig"
LD_LIBRARY_PATH=$lib exec "$root/usr/bin/pkgconf" "$@"
RUN
  chmod +x "$PACK/pkg-config"
  local bound
  bound=$("$PYTHON" -c 'import os, pybind11; print(os.path.dirname(pybind11.__file__))')
  cp -r "$bound" "$PACK/pybind11"
  # shellcheck disable=SC2086
  [ -z "$WHEELS" ] || "$PYTHON" -m pip download -q --no-deps --only-binary=:all: \
    --python-version "$FOR_PYTHON" --implementation cp --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 --platform any \
    -d "$PACK/wheels" $WHEELS
  du -sh "$PACK"
}

imports() { PYTHONPATH=python "$PYTHON" -c 'import torchtraceap._core' 2>/dev/null; }

build() {
  local generator=()
  if command -v ninja > /dev/null; then generator=(-G Ninja); fi
  [ -d "$PACK/root" ] || { echo "there is no $PACK: $0 pack makes it, elsewhere"; exit 2; }
  "$PYTHON" - <<'CHECK'
import os, sys, sysconfig
place = os.path.join(sysconfig.get_paths()["include"], "Python.h")
sys.exit(0 if os.path.exists(place) else f"the headers of Python are not here: {place}")
CHECK
  cmake -S . -B build/device/core "${generator[@]}" -DCMAKE_BUILD_TYPE=Release \
    -DTRACEAP_BUILD_MODEL=OFF -DCMAKE_PREFIX_PATH="$PACK/root/usr" \
    -DPKG_CONFIG_EXECUTABLE="$PACK/pkg-config" -DPython_EXECUTABLE="$(command -v "$PYTHON")" \
    -Dpybind11_DIR="$PACK/pybind11/share/cmake/pybind11" ${CMAKE_OPTIONS:-}
  [ "${1:-}" = configure ] || cmake --build build/device/core -j "$(nproc)" --target _core
}

case "${1:-}" in
  pack) pack ;;
  configure) build configure ;;
  *) imports || build > "${OUT:-/tmp}/core.log" 2>&1 || { tail -n 30 "${OUT:-/tmp}/core.log"; exit 2; }
     imports || { echo "the core was built, and can't be imported"; exit 2; } ;;
esac
