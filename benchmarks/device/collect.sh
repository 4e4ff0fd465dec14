#!/usr/bin/env bash
# Collects labelled traces (docs/collecting.md) on a machine with a GPU that is lent for some minutes
# at a time, starts bare and reaches no registry of packages.
#
#   WHEELS="diffusers timm" benchmarks/device/core.sh pack    here: what that machine lacks
#   benchmarks/device/collect.sh [I/N] [MINUTES]              there, with build/device/pack carried along:
#                                                             records what is not recorded yet of every
#                                                             N-th pair from the I-th on; everything
#                                                             within so many minutes (9)
#   benchmarks/device/collect.sh keep FOLDER                  here: puts what came back in FOLDER to the
#                                                             rest, in build/device/traces
#
# What comes back is one tar archive in pieces of 15 MiB (collected.tar.0 ...), with the compiled core,
# so that later calls need not build it. `keep` leaves what the next call has to know in
# build/device/pack. DEVICE=cpu tries the way out where there is no GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
PACK=$PWD/build/device/pack
TRACES=build/device/traces
PYTHON=${PYTHON:-python3}
DEVICE=${DEVICE:-cuda}
OUT=${OUT:-build/device/out}
CORE='python/torchtraceap/_core*.so'

keep() {
  local unpacked
  unpacked=$(mktemp -d)
  cat "$1"/collected.tar.* | tar -C "$unpacked" -xf -
  mkdir -p "$TRACES" "$PACK/known" "$PACK/built"
  cp -r "$unpacked/traces/." "$TRACES"
  cp -r "$TRACES/.pairs" "$PACK/known"
  cp "$unpacked"/core/*.so "$PACK/built" 2> /dev/null || true
  rm -r "$unpacked"
  echo "$(wc -l < "$TRACES/labels.jsonl") traces in $TRACES"
}

# The wheels, and a core that an earlier call has built for this Python.
prepare() {
  local site=/tmp/torchtraceap-site wheel
  mkdir -p "$site"
  for wheel in "$PACK"/wheels/*.whl; do
    [ ! -f "$wheel" ] || "$PYTHON" -m zipfile -e "$wheel" "$site"
  done
  cp "$PACK"/built/*.so python/torchtraceap 2> /dev/null || true
  benchmarks/device/core.sh
  export PYTHONPATH=$PWD/python:$site${PYTHONPATH:+:$PYTHONPATH}
}

record() {
  local shard=$1 minutes=$2 folder left
  folder=$(mktemp -d)/traces
  mkdir -p "$folder" "$OUT"
  [ ! -d "$PACK/known/.pairs" ] || cp -r "$PACK/known/.pairs" "$folder"
  prepare
  # Processes that record get 20 s beyond their time, and packing takes some.
  left=$("$PYTHON" -c "print(max(0.5, $minutes - ($SECONDS + 30) / 60))")
  echo "==> $((SECONDS)) s for the core; recording for $left minutes"
  "$PYTHON" -W ignore -m torchtraceap collect "$folder" --device "$DEVICE" --shard "$shard" \
    --minutes "$left"
  mkdir -p "$folder/../core"
  # shellcheck disable=SC2086
  cp $CORE "$folder/../core"
  rm -f "$OUT"/collected.tar.*
  tar -C "$folder/.." -cf - traces core | split --bytes=15M --numeric-suffixes --suffix-length=1 \
    - "$OUT/collected.tar."
  ls -l "$OUT"
}

case "${1:-}" in
  keep) keep "${2:?the folder with collected.tar.*}" ;;
  *) record "${1:-1/1}" "${2:-9}" ;;
esac
