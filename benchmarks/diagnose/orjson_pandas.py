"""By hand with orjson and pandas, as a script from start to exit: GPU time, idle, top names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import script


def run(path: str) -> dict[str, int]:
    return script.run(__file__, path)


def answers(found: dict[str, int]) -> dict[str, int]:
    return found


def main(path: str) -> dict[str, int]:
    import do_it_yourself
    import orjson

    built = do_it_yourself.build(do_it_yourself.read(path, orjson.loads))
    for part in ("gpu", "host"):
        built[part].groupby("name")["dur"].agg(["count", "sum"]).sort_values("sum").tail(20)
    return do_it_yourself.answers(built)


if __name__ == "__main__":
    script.main(main)
