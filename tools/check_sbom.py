#!/usr/bin/env python3
"""Checks the notices and the bill of materials of an installed wheel against its extension module.

Run with the Python of the environment that has the wheel. Exits with a sentence if the notices, a
licence text or the bill is missing, or if the bill and the module disagree on what is loaded from
the system.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from typing import Any

# What the compiler brings; all else that the module loads is a library of the bill.
RUNTIME = {"c", "dl", "gcc_s", "m", "pthread", "stdc++"}
SONAMES = {"z": "zlib"}


def main() -> None:
    files = {str(path): path for path in importlib.metadata.files("torchtraceap") or ()}
    inside = {name.partition(".dist-info/")[2]: path for name, path in files.items()}
    for name in ("LICENSE", "THIRD_PARTY_NOTICES.md", "third_party/licences/MPL-2.0.txt"):
        if f"licenses/{name}" not in inside:
            sys.exit(f"the wheel has no {name}")
    if "sboms/torchtraceap.cdx.json" not in inside:
        sys.exit("the wheel has no bill of materials")
    bill = json.loads(inside["sboms/torchtraceap.cdx.json"].read_text())
    listed = {part["name"] for part in libraries(bill) if how(part) == "shared"}
    module = next(path for name, path in files.items() if re.search(r"/_core\.[^/]*so$", name))
    loaded = loaded_libraries(str(module.locate()))
    if listed != loaded:
        sys.exit(f"the bill says that {sorted(listed)} are loaded, the module {sorted(loaded)}")
    compiled = [f"{p['name']} {p['version']}" for p in libraries(bill) if how(p) != "shared"]
    print(f"in the wheel: {', '.join(compiled)}; loaded: {', '.join(sorted(loaded))}")


def libraries(bill: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for part in bill["components"] if part["type"] == "library"]


def how(part: dict[str, Any]) -> str:
    return str(part["properties"][0]["value"])


def loaded_libraries(module: str) -> set[str]:
    """Names of the libraries that the module loads, those of the compiler aside."""
    text = subprocess.run(["readelf", "-d", module], capture_output=True, text=True, check=True)
    names = re.findall(r"\(NEEDED\).*\[lib([\w+-]+)\.so", text.stdout)
    return {SONAMES.get(name, name) for name in names} - RUNTIME


if __name__ == "__main__":
    main()
