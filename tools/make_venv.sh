#!/usr/bin/env bash
# Makes the project's own virtual environment, unless it is there: tools/make_venv.sh [.venv]
# PYTHON names the interpreter; without it the first usable one of at least 3.11 is taken,
# Debian's own before those that a version manager puts on the path.
set -euo pipefail

venv=${1:-.venv}
tools=$(cd "$(dirname "$0")" && pwd)

find_python() {
  "$tools/find_pythons.sh" ${PYTHON:-} | sed -n 1p | grep .
}

if [ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  echo "==> virtual environment: $venv ($("$venv/bin/python" --version))"
  exit
fi
if ! python=$(find_python); then
  "$tools/install_packages.sh" python
  python=$(find_python) || {
    echo "no Python 3.11 or newer with venv and headers found; name one: PYTHON=/path/to/python3" >&2
    exit 1
  }
fi
echo "==> making the virtual environment $venv with $python"
"$python" -m venv --clear "$venv"
