#!/usr/bin/env bash
# Runs the kernels for GPUs on one: those of cpp/traceap/cuda/ against their twins on the host, with
# times; then emulated collectives (results, order behind the current stream, how true their times
# are), for which core.sh builds the package's core where it can't be imported; then the trial of two
# NCCL ranks. Under ten minutes in all.
#
#   benchmarks/device/check_cuda.sh          builds (nvcc) what is not built, and runs
#   benchmarks/device/check_cuda.sh build    builds only, for a machine with a GPU and without nvcc;
#                                            ARCH=sm_90 says for which, build/device is to be carried
set -euo pipefail
cd "$(dirname "$0")/../.."
ARCH=${ARCH:-sm_90}
PYTHON=${PYTHON:-python3}
NVCC=${NVCC:-$(command -v nvcc || ls /usr/local/cuda*/bin/nvcc 2>/dev/null | tail -n 1 || true)}
OUT=${OUT:-build/device}
BUILT=build/device
EMULATED=python/torchtraceap/lab/collection/emulated/kernels.cu

mkdir -p "$BUILT" "$OUT"
if [ ! -x "$BUILT/cuda_parity" ] || [ "${1:-}" = build ]; then
  [ -n "$NVCC" ] || { echo "there is no nvcc (set NVCC), and $BUILT was not built elsewhere"; exit 2; }
  "$NVCC" -std=c++20 -O3 --expt-relaxed-constexpr -Icpp -arch="$ARCH" -o "$BUILT/cuda_parity" \
    cpp/traceap/cuda/on_gpu.cu cpp/traceap/cuda/on_cpu.cpp benchmarks/device/cuda_parity.cu
  "$NVCC" -std=c++17 -O2 -shared -Xcompiler -fPIC -arch="$ARCH" -o "$BUILT/emulated.so" "$EMULATED"
fi
[ "${1:-}" != build ] || exit 0

failed=0
echo "==> kernels and their twins"
timeout 180 "$BUILT/cuda_parity" | tee "$OUT/cuda_parity.txt" || failed=1
echo "==> emulated collectives"
PYTHON=$PYTHON OUT=$OUT benchmarks/device/core.sh || failed=1
TORCHTRACEAP_EMULATED_KERNELS=$PWD/$BUILT/emulated.so PYTHONPATH=python \
  timeout 180 "$PYTHON" benchmarks/device/check_emulated.py --out "$OUT" || failed=1
echo "==> two ranks of NCCL on one GPU (not a failure if they don't run)"
timeout 150 "$PYTHON" benchmarks/device/nccl_two_ranks.py --timeout 120 --out "$OUT" || true
exit $failed
