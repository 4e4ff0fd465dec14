"""Writes what a wheel holds of others, as CycloneDX JSON (PEP 770: dist-info/sboms).

Usage: make_sbom.py ROOT OUT VERSION LIBRARY=VERSION=HOW...

Versions and how a library is linked (headers, static, shared) come from the build; licences and
addresses from THIRD_PARTY_NOTICES.md; sources of data from the data files themselves.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PACKAGE = "python/torchtraceap"
DATA = ("ops/durations/data", "lab/jobs/data")
PROPERTY = "torchtraceap:how"  # headers, static, shared


def main(root: Path, out: Path, version: str, libraries: list[str]) -> None:
    out.write_text(json.dumps(sbom(root, version, libraries), indent=1) + "\n", encoding="utf-8")


def sbom(root: Path, version: str, libraries: Iterable[str]) -> dict[str, Any]:
    """The document.

    Raises:
        SystemExit: A library is not in the notices.
    """
    own = {
        "type": "library",
        "bom-ref": "torchtraceap",
        "name": "torchtraceap",
        "version": version,
        "purl": f"pkg:pypi/torchtraceap@{version}",
        "licenses": [{"license": {"id": "BSD-3-Clause"}}],
    }
    known = noticed_libraries(root)
    parts = [library(known, *text.split("=")) for text in libraries]
    parts += [data_component(*source) for source in data_sources(root)]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"lifecycles": [{"phase": "build"}], "component": own},
        "components": parts,
        "dependencies": [
            {"ref": "torchtraceap", "dependsOn": [part["bom-ref"] for part in parts]},
            *({"ref": part["bom-ref"], "dependsOn": []} for part in parts),
        ],
    }


def noticed_libraries(root: Path) -> dict[str, tuple[str, str]]:
    """Licence and address of each library, from the table of the notices."""
    text = (root / "THIRD_PARTY_NOTICES.md").read_text("utf-8").partition("## Libraries")[2]
    rows = re.findall(r"^\| (\w+) \| ([\w.-]+) \| (https://\S+) \|", text, re.MULTILINE)
    return {name: (licence, url) for name, licence, url in rows}


def library(known: dict[str, tuple[str, str]], name: str, version: str, how: str) -> dict[str, Any]:
    if name not in known or not version or how not in ("headers", "static", "shared"):
        sys.exit(f"{name} {version} ({how}) is not in THIRD_PARTY_NOTICES.md, or incomplete")
    licence, url = known[name]
    return {
        "type": "library",
        "bom-ref": f"library/{name}",
        "name": name,
        "version": version,
        "purl": f"pkg:generic/{name.lower()}@{version}",
        "licenses": [{"license": {"id": licence}}],
        "externalReferences": [{"type": "website", "url": url}],
        "properties": [{"name": PROPERTY, "value": how}],
    }


def data_sources(root: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """File of the package, and an object with repository, commit and licence in it."""
    for folder in DATA:
        for path in sorted((root / PACKAGE / folder).glob("*.json")):
            seen = set()
            for source in _provenances(json.loads(path.read_text("utf-8"))):
                key = (source["repository"], source["commit"])
                if key not in seen:
                    seen.add(key)
                    yield f"{folder}/{path.name}", source


def _provenances(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if {"repository", "commit", "licence"} <= node.keys():
            yield node
        else:
            for inner in node.values():
                yield from _provenances(inner)
    elif isinstance(node, list) and node and isinstance(node[0], dict):
        for inner in node:
            yield from _provenances(inner)


def data_component(file: str, source: dict[str, Any]) -> dict[str, Any]:
    repository, commit = source["repository"], source["commit"]
    return {
        "type": "data",
        "bom-ref": f"data/{file}/{repository}",
        "name": repository,
        "version": commit,
        "purl": f"pkg:github/{repository.lower()}@{commit}",
        "licenses": [{"license": {"id": source["licence"]}}],
        "externalReferences": [{"type": "vcs", "url": f"https://github.com/{repository}"}],
        "properties": [{"name": "torchtraceap:file", "value": file}],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
