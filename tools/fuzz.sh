#!/usr/bin/env bash
# Runs every libFuzzer target of a sanitizer build: tools/fuzz.sh [BUILD_FOLDER] [SECONDS_IN_ALL]
# Inputs that fail are left in BUILD_FOLDER/fuzz/. The seed is fixed, so that a check of one commit
# repeats; search with others by FUZZ_SEED=0 (random) and a longer time.
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
  share=$((seconds / ${#targets[@]}))
  echo "==> fuzzing: $name for $share s"
  if ! "$target" -seed="${FUZZ_SEED:-1}" -max_total_time="$share" -timeout=10 -rss_limit_mb=2048 -print_funcs=0 \
    -print_final_stats=1 -artifact_prefix="$work-" "$work" "$seeds" >"$work.log" 2>&1; then
    tail -n 60 "$work.log"
    echo "==> the input is $work-*; the log $work.log" >&2
    exit 1
  fi
  grep -E 'number_of_executed_units|new_units_added|peak_rss_mb' "$work.log"
done
