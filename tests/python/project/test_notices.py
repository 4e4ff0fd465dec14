"""Third-party notices, licence texts and the bill of materials name all that the package holds."""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "python" / "torchtraceap"
NOTICES = (ROOT / "THIRD_PARTY_NOTICES.md").read_text("utf-8")
CODE = {".cu", ".py", ".pyi", ".pyc", ".so", ".typed"}
# Found by CMake, and no library of the extension module.
TOOLS = {"Threads", "PkgConfig", "Python"}


def load_tool(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SBOM = load_tool("cmake/make_sbom.py")


def test_every_file_of_data_is_named() -> None:
    named = re.findall(r"^\| ([\w/., ]+) \|", NOTICES, re.MULTILINE)
    places = [place.strip().rstrip("/") for cell in named for place in cell.split(",")]
    files = [p for p in PACKAGE.rglob("*") if p.is_file() and p.suffix not in CODE]
    assert len(files) > 10
    for file in files:
        relative = file.relative_to(PACKAGE).as_posix()
        assert any(relative == place or relative.startswith(place + "/") for place in places), file


def test_sources_of_data_are_those_of_the_files() -> None:
    rows = re.findall(
        r"^\| ((?:ops/durations|lab/jobs)/\S+) \| https://github.com/(\S+) \| (\w+) \| (\S+) \|",
        NOTICES,
        re.MULTILINE,
    )
    in_files = [
        (file, source["repository"], source["commit"], source["licence"])
        for file, source in SBOM.data_sources(ROOT)
    ]
    assert sorted(rows) == sorted(in_files) and len(rows) == 8


def found_by_cmake() -> set[str]:
    text = (ROOT / "cmake/TraceapDependencies.cmake").read_text("utf-8")
    names = set(re.findall(r"find_package\((\w+)", text)) - TOOLS
    names |= set(re.findall(r"pkg_check_modules\((\w+)", text))
    return {"zlib" if name == "ZLIB" else name for name in names}


def test_every_library_is_named_with_a_text() -> None:
    known = SBOM.noticed_libraries(ROOT)
    assert found_by_cmake() | {"xtl"} == set(known)  # xtensor's own headers include xtl's
    given = (ROOT / "cmake/TraceapSbom.cmake").read_text("utf-8")
    assert set(re.findall(r"^ +(\w+)=\$", given, re.MULTILINE)) == set(known)
    rows = re.findall(r"^\| (\w+) \| .* \| ([\w.-]+\.txt) \|$", NOTICES, re.MULTILINE)
    assert {name for name, _ in rows} == set(known)
    texts = {text for _, text in rows} | {"MIT.txt"}
    assert texts == {path.name for path in ROOT.glob("third_party/licences/*")}
    for text in texts:
        assert (ROOT / "third_party/licences" / text).stat().st_size > 900, text


def test_layers_link_only_what_is_named() -> None:
    """The libraries of the layers' CMake files are among those that are looked for."""
    linked = set()
    for path in (ROOT / "cpp/traceap").glob("*/CMakeLists.txt"):
        for depends in re.findall(r"PRIVATE_DEPENDS ([^)]*)\)", path.read_text("utf-8")):
            linked |= {name for name in depends.split() if name != "Threads::Threads"}
    expected = {
        *("simdjson::simdjson", "PkgConfig::isal", "${TRACEAP_ZSTD}", "ZLIB::ZLIB"),
        *("Eigen3::Eigen", "xtensor"),
    }
    assert linked == expected


def test_wheel_and_archive_carry_them() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    patterns = settings["project"]["license-files"]
    carried = {path for pattern in patterns for path in ROOT.glob(pattern)}
    licences = set(ROOT.glob("third_party/licences/*"))
    assert {ROOT / "LICENSE", ROOT / "THIRD_PARTY_NOTICES.md"} | licences == carried
    excluded = settings["tool"]["scikit-build"]["sdist"]["exclude"]
    for name in ("THIRD_PARTY_NOTICES.md", "SECURITY.md", "third_party", "cmake"):
        assert not any(fnmatch.fnmatch(name, pattern) for pattern in excluded)


def test_the_bill_of_materials(tmp_path: Path) -> None:
    out = tmp_path / "bill.json"
    SBOM.main(ROOT, out, "1.2.3", ["zstd=1.5.4=static", "simdjson=3.0.1=shared"])
    bill = json.loads(out.read_text("utf-8"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/torchtraceap@1.2.3"
    zstd, simdjson, *data = bill["components"]
    assert (zstd["name"], zstd["version"]) == ("zstd", "1.5.4")
    assert zstd["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
    assert simdjson["properties"] == [{"name": "torchtraceap:how", "value": "shared"}]
    assert [part["type"] for part in data] == ["data"] * 8
    references = [part["bom-ref"] for part in bill["components"]]
    assert len(set(references)) == len(references)
    assert bill["dependencies"][0] == {"ref": "torchtraceap", "dependsOn": references}


@pytest.mark.parametrize("library", ["curl=8.0=static", "zstd==static", "zstd=1.5.4=somehow"])
def test_a_library_without_notice_or_version_stops_the_build(library: str) -> None:
    with pytest.raises(SystemExit, match="THIRD_PARTY_NOTICES"):
        SBOM.sbom(ROOT, "1.0", [library])
