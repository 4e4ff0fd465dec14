"""Makes kb.json from kb.yaml: `python -m torchtraceap.core.knowledge`, or this file run."""

from __future__ import annotations

import json
from pathlib import Path


def compile_knowledge(source: Path) -> str:
    """Return the JSON text for the YAML file `source`, in its order."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries = yaml.load(source.read_text(encoding="utf-8"), Loader=loader)
    return json.dumps(entries, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    folder = Path(__file__).parent
    (folder / "kb.json").write_text(compile_knowledge(folder / "kb.yaml"), encoding="utf-8")
