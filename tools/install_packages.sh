#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that a build needs; does nothing when all are there.
#   tools/install_packages.sh GROUP...      groups: python build test check bench format tidy wheel
# Elsewhere, environment.yml holds the same for conda-forge.
set -euo pipefail

declare -A groups=(
  [python]="python3 python3-venv python3-dev"
  [build]="g++ cmake ninja-build pkg-config libsimdjson-dev libisal-dev libzstd-dev zlib1g-dev
           libeigen3-dev libxtensor-dev ccache"
  [test]="catch2"
  # clang with its runtime: sanitizers and libFuzzer; llvm: names in their reports. chromium: the
  # browser tests of the HTML report.
  [check]="clang libclang-rt-14-dev llvm chromium fonts-dejavu-core"
  [bench]="libbenchmark-dev"
  [format]="clang-format"
  [tidy]="clang-tidy"
  # nasm: ISA-L.
  [wheel]="make nasm"
)

is_installed() {
  [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing=()
for group in "$@"; do
  for package in ${groups[$group]:?no such group: $group}; do
    if command -v dpkg-query >/dev/null && is_installed "$package"; then continue; fi
    missing+=("$package")
  done
done

# Without a package manager that can be used: in one sentence what is missing, and what installs it.
stop() {
  echo "==> missing Debian packages, which only root can install: ${missing[*]}; install them, then try again:" >&2
  echo "    Debian or Ubuntu:  sudo apt-get install --no-install-recommends ${missing[*]}" >&2
  echo "    conda:             conda env create -f environment.yml && conda activate torchtraceap" >&2
  exit 1
}

as_root=()
if [ ${#missing[@]} -eq 0 ]; then
  echo "==> system packages ($*): all there"
  exit
elif ! command -v apt-get >/dev/null; then
  echo "==> no apt-get here: expecting what these Debian packages hold: ${missing[*]}"
  echo "    (conda-forge: conda env create -f environment.yml)"
  exit
elif [ "$(id -u)" -ne 0 ]; then
  if [ -n "${CONDA_PREFIX:-}" ]; then
    echo "==> conda environment $CONDA_PREFIX: expecting what these Debian packages hold: ${missing[*]}"
    exit
  fi
  command -v sudo >/dev/null || stop
  # A password can be typed only at a terminal.
  [ -t 0 ] || sudo --non-interactive true 2>/dev/null || stop
  as_root=(sudo)
fi
echo "==> installing system packages: ${missing[*]}"
apt_get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
"${apt_get[@]}" update || stop
"${apt_get[@]}" install --yes --no-install-recommends "${missing[@]}" >/dev/null || stop
