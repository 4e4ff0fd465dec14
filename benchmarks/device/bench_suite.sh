#!/usr/bin/env bash
# Figures of the suite on a machine with a GPU that starts bare and reaches no registry of packages:
# the five wins, workloads in fp32, TF32, bf16 and compiled, verdicts, calibration, watching
# (bench_suite.py says what each is). Under ten minutes in all.
#
#   WHEELS="pyarrow" FOR_PYTHON=3.12 benchmarks/device/core.sh pack   here: what that machine lacks
#   benchmarks/device/bench_suite.sh [PART ...]                       there, with build/device/pack
#                                                                     carried along; all parts, or some
#   benchmarks/device/bench_suite.sh keep FOLDER                      here: keeps the core that came
#                                                                     back, so that later calls build none
#
# MINUTES (9) is the time for everything, the build of the core included. Results lie in OUT
# (build/device): bench_suite.json, traces of the wins, the store. DEVICE=cpu QUICK=1 tries the way
# out where there is no GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
PACK=$PWD/build/device/pack
PYTHON=${PYTHON:-python3}
DEVICE=${DEVICE:-cuda}
MINUTES=${MINUTES:-9}
OUT=${OUT:-build/device}
CORE='python/torchtraceap/_core*.so'

if [ "${1:-}" = keep ]; then
  mkdir -p "$PACK/built"
  cp "${2:?the folder with core/*.so}"/core/*.so "$PACK/built"
  exit 0
fi

site=/tmp/torchtraceap-site
mkdir -p "$site" "$OUT"
for wheel in "$PACK"/wheels/*.whl; do
  [ ! -f "$wheel" ] || "$PYTHON" -m zipfile -e "$wheel" "$site"
done
# One that is there for this Python comes first, then one that an earlier call built, then a build.
PYTHONPATH=python "$PYTHON" -c 'import torchtraceap._core' 2> /dev/null ||
  cp "$PACK"/built/*.so python/torchtraceap 2> /dev/null || true
PYTHON=$PYTHON OUT=$OUT benchmarks/device/core.sh
mkdir -p "$OUT/core"
# shellcheck disable=SC2086
cp $CORE "$OUT/core"
export PYTHONPATH=$PWD/python:$site${PYTHONPATH:+:$PYTHONPATH}
left=$("$PYTHON" -c "print(max(0.5, $MINUTES - $SECONDS / 60))")
echo "==> $SECONDS s for the core; $left minutes are left"
"$PYTHON" -W ignore benchmarks/device/bench_suite.py --device "$DEVICE" --minutes "$left" \
  --out "$OUT" ${QUICK:+--quick} ${1:+--parts "$@"}
du -sh "$OUT"
