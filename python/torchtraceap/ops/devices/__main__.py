"""Generate devices.json from devices.yaml: `python -m torchtraceap.ops.devices`."""

from __future__ import annotations

import json
from pathlib import Path


def compile_devices(source: Path) -> str:
    """Return the JSON text of the YAML file `source`, in its order."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries = yaml.load(source.read_text(encoding="utf-8"), Loader=loader)
    return json.dumps(entries, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    folder = Path(__file__).parent
    (folder / "devices.json").write_text(compile_devices(folder / "devices.yaml"), encoding="utf-8")
