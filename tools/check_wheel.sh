#!/usr/bin/env bash
# Installs a wheel into an empty virtual environment, checks its notices and bill of materials, and
# diagnoses a trace with it, away from the checkout: tools/check_wheel.sh PYTHON WHEEL [TRACE]
# A wheel for manylinux must load no library but those of the C library and of the compiler.
set -euo pipefail

python=$1
wheel=$(realpath "$2")
root=$(cd "$(dirname "$0")/.." && pwd)
trace=$(realpath "${3:-$root/examples/traces/resnet50_num_workers_0.json.gz}")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --quiet --disable-pip-version-check install "$wheel"
cd "$work"
if [[ $wheel == *-manylinux_* ]]; then
  module=$(echo "$work"/venv/lib/python*/site-packages/torchtraceap/_core.*.so)
  others=$(readelf -d "$module" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -vxE 'lib(c|m|gcc_s|pthread|dl)\.so\.[0-9]+|ld-linux-.*' || true)
  if [ -n "$others" ]; then
    echo "$wheel loads libraries of the system:" $others >&2
    exit 1
  fi
fi
venv/bin/python "$root/tools/check_sbom.py"
venv/bin/torchtraceap diagnose "$trace" --json >diagnosis.json
venv/bin/torchtraceap report "$trace" --html report.html
venv/bin/python - <<'END'
import json
from pathlib import Path

import torchtraceap

assert Path(torchtraceap.__file__).is_relative_to(Path.cwd()), torchtraceap.__file__
found = [f["type"] for f in json.loads(Path("diagnosis.json").read_text())["findings"]]
assert found, "no finding in a trace that has some"
assert Path("report.html").stat().st_size > 10_000
print(f"the wheel works: {', '.join(found)}")
END
