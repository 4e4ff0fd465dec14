"""What a person meets who builds: progress, and one sentence about what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
DEPENDENCIES = (ROOT / "cmake/TraceapDependencies.cmake").read_text("utf-8")
NEEDS = re.findall(r'traceap_need\([\w.]+ (?:".*?"|\S+) (\S+) "?(.*?)"?\)', DEPENDENCIES)


def packages_of(group: str) -> set[str]:
    text = (ROOT / "tools/install_packages.sh").read_text("utf-8")
    (names,) = re.findall(rf'^  \[{group}\]="([^"]*)"', text, re.MULTILINE)
    return set(names.split())


def test_what_cmake_asks_for_is_what_is_installed() -> None:
    debian, conda = {need[0] for need in NEEDS}, {need[1].strip("'") for need in NEEDS}
    assert len(NEEDS) == DEPENDENCIES.count("\ntraceap_need(") + DEPENDENCIES.count(
        "  traceap_need("
    )
    assert debian <= packages_of("build") | packages_of("python")
    assert packages_of("build") - debian == {"ccache", "cmake", "ninja-build"}  # no library
    listed = yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))["dependencies"]
    names = {re.split("[<>=]", entry)[0] for entry in listed if isinstance(entry, str)}
    assert {re.split("[<>=]", name)[0] for name in conda} <= names


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no CMake")
def test_a_build_names_everything_that_is_missing(tmp_path: Path) -> None:
    hidden = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("simdjson", "Eigen3")]
    settings = ["-DTRACEAP_BUILD_PYTHON=OFF", *hidden]
    done = subprocess.run(
        ["cmake", "-S", ROOT, "-B", tmp_path, *settings],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode != 0
    if "no library was looked for" in done.stderr:
        pytest.skip("no compiler")
    (sentence,) = re.findall(r"^ .*this is missing: (.*); install it", done.stderr, re.MULTILINE)
    assert {"simdjson", "Eigen"} <= set(sentence.split(", "))
    assert re.search(r"sudo apt-get install .*\blibsimdjson-dev\b.*\blibeigen3-dev\b", done.stderr)
    assert re.search(r"conda install -c conda-forge .*\bsimdjson\b.*'eigen<4'", done.stderr)


def fake_machine(folder: Path, **programs: str) -> dict[str, str]:
    """An environment with these programs and a few true ones."""
    for name in ("bash", "env", "cat"):
        (folder / name).symlink_to(shutil.which(name) or name)
    for name, script in programs.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!{shutil.which('bash')}\n{script}\n")
        path.chmod(0o755)
    return {"PATH": str(folder)}


def install(*groups: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    script = ROOT / "tools/install_packages.sh"
    command = [shutil.which("bash") or "bash", str(script), *groups]
    return subprocess.run(
        command, capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL, timeout=60
    )


ALL_BUT_ISAL = 'case "${!#}" in libisal-dev) exit 1 ;; *) echo -n installed ;; esac'


@pytest.mark.parametrize("sudo", [None, "echo 'sudo: a password is required' >&2; exit 1"])
def test_without_root_the_missing_packages_are_named(tmp_path: Path, sudo: str | None) -> None:
    programs = {"id": "echo 1000", "apt_get": "exit 9", "dpkg_query": ALL_BUT_ISAL}
    programs |= {"sudo": sudo} if sudo else {}
    done = install("build", env=fake_machine(tmp_path, **programs))
    assert done.returncode == 1
    first, *commands = done.stderr.splitlines()
    assert first.startswith("==> missing Debian packages") and ": libisal-dev;" in first
    assert [line.split(":")[0].strip() for line in commands] == ["Debian or Ubuntu", "conda"]
    assert commands[0].endswith("apt-get install --no-install-recommends libisal-dev")


def test_a_conda_environment_is_taken_as_it_is(tmp_path: Path) -> None:
    machine = fake_machine(tmp_path, id="echo 1000", apt_get="exit 9", dpkg_query=ALL_BUT_ISAL)
    done = install("build", env={**machine, "CONDA_PREFIX": "/opt/conda"})
    assert done.returncode == 0 and "libisal-dev" in done.stdout


def test_root_installs_what_is_missing(tmp_path: Path) -> None:
    note = f'echo "$*" >> {tmp_path}/asked'
    machine = fake_machine(tmp_path, id="echo 0", apt_get=note, dpkg_query=ALL_BUT_ISAL)
    assert install("build", env=machine).returncode == 0
    update, asked = (tmp_path / "asked").read_text().splitlines()
    assert update.endswith("update") and asked.endswith(" libisal-dev")


def with_progress(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    tool = ROOT / "tools/with_progress.py"
    command = [sys.executable, tool, folder / "log", "--", "bash", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_build_shows_how_far_it_is(tmp_path: Path) -> None:
    done = with_progress(tmp_path, 'for i in {1..40}; do echo "  [$i/40] Building x.cpp"; done')
    assert done.returncode == 0
    steps = re.findall(r"^    step (\d+) of 40$", done.stderr, re.MULTILINE)
    assert [int(step) for step in steps] == list(range(4, 41, 4))
    assert (tmp_path / "log").read_text().count("\n") == 40


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ("seq 100; echo 'CMake Error at x:1:'; echo '  because'; exit 3", "because"),
        ("seq 100; echo last; exit 3", "last"),
    ],
)
def test_a_failed_build_shows_why(tmp_path: Path, script: str, shown: str) -> None:
    done = with_progress(tmp_path, script)
    assert done.returncode == 3
    assert shown in done.stderr and str(tmp_path / "log") in done.stderr
    assert "\n7\n" not in done.stderr


def test_releases_build_what_the_makefile_builds() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wheels = settings["tool"]["cibuildwheel"]
    assert wheels["manylinux-x86_64-image"] == "manylinux_2_34"
    assert "manylinux_2_34_" in (ROOT / "tools/build_wheels.sh").read_text("utf-8")
    assert {f"cp3{minor}-manylinux_x86_64" for minor in (11, 12, 13)} == set(
        wheels["build"].split()
    )
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))
    assert set(workflow["jobs"]) == {"version", "wheels", "empty", "archive", "publish"}
    text = (ROOT / ".github/workflows/release.yml").read_text("utf-8") + str(wheels)
    for script in set(re.findall(r"tools/\w+\.(?:sh|py)", text)):
        assert os.access(ROOT / script, os.X_OK), script


def test_sources_of_static_libraries_are_pinned() -> None:
    text = (ROOT / "cmake/static_libraries/sources.txt").read_text("utf-8")
    entries = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert entries
    for entry in entries:
        assert re.fullmatch(r"[\w-]+==[\d.]+ --hash=sha256:[0-9a-f]{64}", entry)


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_name_actions_by_hash_and_may_only_read(path: Path) -> None:
    text = path.read_text("utf-8")
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action
    assert "\npermissions:\n  contents: read\n" in text
    assert "pull_request_target" not in text


def test_a_tag_is_of_the_version_of_the_package() -> None:
    from torchtraceap import __version__

    def code(ref: str) -> int:
        return subprocess.run(
            [ROOT / "tools" / "check_tag.sh", ref], capture_output=True, check=False
        ).returncode

    assert code(f"refs/tags/v{__version__}") == 0
    assert code("refs/heads/main") == 0
    assert code("refs/tags/v999.0.0") == 1
    assert code(f"refs/tags/v{__version__}.post1") == 1
