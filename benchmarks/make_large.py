"""Makes a large trace by repeating a small one: the text of every event is kept, each copy begins
where the last one ended, ids are shifted so that launches still meet their kernels, steps count on.

    python benchmarks/make_large.py OUTPUT.json[.gz] --megabytes 500 [--trace SMALL.json.gz]
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import IO

DEMO_TRACE = Path(__file__).resolve().parents[1] / "examples/traces/resnet50_num_workers_0.json.gz"
SHIFTED = re.compile(
    r'(?P<before>"(?P<key>ts|id|correlation|External id|external id|Sequence number|Ev Idx|'
    r'Python id|Python parent id)":\s*|"ProfilerStep#)(?P<value>\d+(?:\.\d+)?)'
)


@dataclass(frozen=True)
class Template:
    """Texts with a number between each two; how much each number grows from copy to copy."""

    texts: list[str]
    values: list[Decimal]
    growth: list[Decimal]

    def copy(self, number: int) -> str:
        parts = [self.texts[0]]
        for text, value, growth in zip(self.texts[1:], self.values, self.growth, strict=True):
            parts += [str(value + growth * number), text]
        return "".join(parts)


def split_events(text: str) -> tuple[str, list[str], str]:
    """What stands before the first event, the text of each event, what stands behind the last."""
    at = text.index("[", text.index('"traceEvents"')) + 1
    head, decoder, events = text[:at], json.JSONDecoder(), []
    while (at := re.compile(r"[\s,]*").match(text, at).end()) and text[at] != "]":  # type: ignore[union-attr]
        _, end = decoder.raw_decode(text, at)
        events.append(text[at:end])
        at = end
    return head, events, text[at:]


def is_repeated(event: dict[str, object]) -> bool:
    """Names of threads and the profiler's own record of the whole run stand once."""
    return event.get("ph") != "M" and "ts" in event and event.get("cat") != "Trace"


def make_template(events: list[str]) -> Template:
    parsed = [json.loads(event) for event in events]
    kept = [text for text, event in zip(events, parsed, strict=True) if is_repeated(event)]
    timed = [
        (Decimal(str(event["ts"])), Decimal(str(event.get("dur", 0))))
        for event in parsed
        if is_repeated(event)
    ]
    period = max(ts + dur for ts, dur in timed) - min(ts for ts, _ in timed) + 1
    text = ",\n  ".join(kept)
    matches = list(SHIFTED.finditer(text))
    keys = [match["key"] or "step" for match in matches]
    values = [Decimal(match["value"]) for match in matches]
    largest: dict[str, Decimal] = {}
    for key, value in zip(keys, values, strict=True):
        largest[key] = max(value, largest.get(key, value))
    steps = [value for key, value in zip(keys, values, strict=True) if key == "step"]
    growth_of = {key: value + 1 for key, value in largest.items()}
    growth_of |= {"ts": period, "step": Decimal(len(set(steps)))}
    # Zero means "none" in every id.
    growth = [
        growth_of[key] if value or key in ("ts", "step") else Decimal(0)
        for key, value in zip(keys, values, strict=True)
    ]
    borders = [0, *(edge for match in matches for edge in match.span("value")), len(text)]
    texts = [text[a:b] for a, b in zip(borders[::2], borders[1::2], strict=True)]
    return Template(texts, values, growth)


def pieces(text: str, size: int) -> Iterator[str]:
    """The large trace, piece by piece, until it has at least `size` characters."""
    head, events, tail = split_events(text)
    template = make_template(events)
    written, number = 0, 0
    once = [event for event in events if not is_repeated(json.loads(event))]
    yield head + "\n  " + ",\n  ".join(once)
    while written < size:
        piece = ",\n  " + template.copy(number)
        yield piece
        written += len(piece)
        number += 1
    yield "\n" + tail


def open_output(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "wt", encoding="utf-8", compresslevel=6)
    return open(path, "w", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--megabytes", type=float, required=True)
    parser.add_argument("--trace", type=Path, default=DEMO_TRACE)
    options = parser.parse_args()
    data = options.trace.read_bytes()
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8")
    with open_output(options.output) as output:
        for piece in pieces(text, int(options.megabytes * 1e6)):
            output.write(piece)
    print(f"{options.output}: {options.output.stat().st_size / 1e6:,.1f} MB")


if __name__ == "__main__":
    main()
