"""Makes the files of N ranks out of one rank's trace, each with a clock of its own.

    python benchmarks/make_ranks.py TRACE FOLDER --ranks 8

Every rank has the same events; what differs is the rank in `distributedInfo` and an offset of all
times, which aligning the clocks has to find. For timing many ranks; the folder is not kept.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

OFFSET_US = 350.0


def read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    document: dict[str, Any] = json.loads(
        gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, strict=False
    )
    return document


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=8)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    document = read(options.trace)
    for rank in range(options.ranks):
        known = document.get("distributedInfo", {})
        document["distributedInfo"] = known | {"rank": rank, "world_size": options.ranks}
        for event in document["traceEvents"] if rank else ():
            if isinstance(event.get("ts"), (int, float)):
                event["ts"] += OFFSET_US
        path = options.folder / f"rank{rank}.json.gz"
        path.write_bytes(gzip.compress(json.dumps(document).encode(), compresslevel=6))
        print(path)


if __name__ == "__main__":
    main()
