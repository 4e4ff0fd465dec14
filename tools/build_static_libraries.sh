#!/usr/bin/env bash
# Builds simdjson, zstd and ISA-L as static libraries from pinned sources, for wheels that need no
# library of the system: tools/build_static_libraries.sh [--headers] PYTHON PREFIX
# Needs gcc, CMake, make, nasm and what PYTHON's pip can fetch. With --headers also Eigen,
# xtensor and xtl, with git, where the system has no packages of them. Does nothing where PREFIX is there.
set -euo pipefail

headers=""
if [ "$1" = --headers ]; then headers=yes; shift; fi
python=$1
prefix=$2
here=$(cd "$(dirname "$0")/.." && pwd)/cmake/static_libraries
wanted=$(cat "$here"/* "$0" | sha256sum)
if [ "$(cat "$prefix/built-from" 2>/dev/null)" = "$wanted" ]; then
  echo "==> static libraries: $prefix"
  exit
fi

echo "==> building static libraries into $prefix"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$prefix"
mkdir -p "$prefix/lib/pkgconfig" "$prefix/include/isa-l"
prefix=$(cd "$prefix" && pwd)

"$python" -m pip --quiet --disable-pip-version-check download --no-deps --no-binary :all: \
  --require-hashes --requirement "$here/sources.txt" --dest "$work"
for archive in "$work"/*.tar.gz; do tar -xzf "$archive" -C "$work"; done

cmake -S "$here" -B "$work/build" -DCMAKE_INSTALL_PREFIX="$prefix" \
  -DSIMDJSON_SOURCES="$(echo "$work"/pysimdjson-*/simdjson)" -DZSTD_SOURCES="$(echo "$work"/zstandard-*/zstd)" >/dev/null
cmake --build "$work/build" --target install --parallel >/dev/null

isal=$(echo "$work"/isal-*/src/isal/isa-l)
version=$(sed -n 's/^version ?= *//p' "$isal/make.inc")
make -C "$isal" -f Makefile.unx -j"$(nproc)" lib CC=gcc CFLAGS_gcc=-fPIC >"$work/isa-l.log" 2>&1 || {
  tail -n 20 "$work/isa-l.log" >&2
  exit 1
}
cp "$isal/bin/isa-l.a" "$prefix/lib/libisal.a"
cp "$isal"/include/*.h "$prefix/include/isa-l/"
cat >"$prefix/lib/pkgconfig/libisal.pc" <<END
Name: libisal
Description: ISA-L
Version: $version
Libs: -L$prefix/lib -lisal
Cflags: -I$prefix/include
END

if [ -n "$headers" ]; then
  git_headers() {  # URL TAG [OPTION...]
    local name=${1##*/}
    git clone --quiet --depth 1 --branch "$2" "$1" "$work/$name"
    cmake -S "$work/$name" -B "$work/$name-build" -DCMAKE_INSTALL_PREFIX="$prefix" \
      -DCMAKE_PREFIX_PATH="$prefix" -DBUILD_TESTING=OFF "${@:3}" >/dev/null
    cmake --install "$work/$name-build" >/dev/null
  }
  git_headers https://gitlab.com/libeigen/eigen 3.4.0 -DEIGEN_BUILD_DOC=OFF
  git_headers https://github.com/xtensor-stack/xtl 0.7.5
  git_headers https://github.com/xtensor-stack/xtensor 0.24.7
fi
echo "$wanted" >"$prefix/built-from"
