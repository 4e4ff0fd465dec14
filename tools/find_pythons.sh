#!/usr/bin/env bash
# Prints an interpreter of each Python version from 3.11 that can build the extension module, of those
# given, or else of those here: Debian's own first, pyenv's last. tools/find_pythons.sh [PYTHON...]
set -euo pipefail

usable='
import ensurepip, os, sys, sysconfig, venv
headers = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(sys.version_info < (3, 11) or not os.path.exists(headers))'

if [ $# -eq 0 ]; then
  set -- /usr/bin/python3.{11..14} python3.{11..14} python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3
fi
declare -A seen=()
for candidate in "$@"; do
  path=$(command -v "$candidate") || continue
  "$path" -c "$usable" 2>/dev/null || continue
  version=$("$path" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  [ -z "${seen[$version]:-}" ] || continue
  seen[$version]=1
  echo "$path"
done
