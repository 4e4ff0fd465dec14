#!/usr/bin/env bash
# Runs every libFuzzer target of a sanitizer build: tools/fuzz.sh [BUILD_FOLDER] [SECONDS_IN_ALL]
# Inputs that fail are left in BUILD_FOLDER/fuzz/.
set -euo pipefail

build=${1:-build/asan}
seconds=${2:-60}
root=$(cd "$(dirname "$0")/.." && pwd)
mapfile -t targets < <(find "$build/tests/cpp/fuzz" -maxdepth 1 -type f -executable -name 'fuzz_*')
if [ ${#targets[@]} -eq 0 ]; then
  echo "no fuzz target in $build/tests/cpp/fuzz: build it first (cmake --preset asan)" >&2
  exit 1
fi
for target in "${targets[@]}"; do
  name=$(basename "$target")
  work=$build/fuzz/$name
  seeds=$root/tests/cpp/fuzz/corpus
  mkdir -p "$work"
  echo "==> fuzzing: $name for $((seconds / ${#targets[@]})) s"
  "$target" -max_total_time=$((seconds / ${#targets[@]})) -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="$work-" -print_final_stats=1 -verbosity=0 "$work" "$seeds"
done
