"""CPU seconds and memory of the reader on text that no profiler writes, at n and 4n bytes.

    python benchmarks/scaling/reader.py [--bytes 1000000 4000000] [--families WORD ...]
        [--output FILE]

Every family is read as it is, once more as gzip, and in chunks of 16 MiB, so that what grows with
the square of a chunk shows. One is listed if its time or memory grows by more than 6 from n to 4n,
or if it takes more than a second for a megabyte. Each is read in a process of its own, which is
ended after --limit seconds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

from torchtraceap import _core
from torchtraceap.errors import TraceError

GROWTH, SECONDS_PER_MB = 6.0, 1.0
# What does not grow: starting a thread and a parser takes this long and this much.
FLOOR_S, FLOOR_MB = 0.05, 30.0
HEAD = '{"traceEvents":['
EVENT = '{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1}'

Family = Callable[[int], str]

# What is repeated inside a string.
IN_STRINGS = {
    "quotes": '"', "quote and letter": '"a', "letter, quote, space": 'a" ', "spaces, quote": '  "',
    "quote, comma": '",', "quote, comma, space": '", ', "comma, quote": ', "', "backslashes": "\\",
    "escaped quotes": '\\"', "escaped quote, comma": '\\", ', "escaped quote, member": '\\", "',
    "quote, colon": '":', "quote, brace": '"{', "quote, bracket": '"]', "quoted comma": '","a',
    "lines": "\n", "lines and quotes": '\n"', "no UTF-8": "\xff", "like keys": '" "k" ',
    "like bare keys": '", k ', "two quotes": '"" ', "control characters": "\x01",
    "half escapes": "\\u",
}  # fmt: skip
# What is repeated between events, in arguments, before and behind the array, or alone.
BETWEEN = {
    "stray number": EVENT + ",1,", "stray word": EVENT + " x ", "stray bracket": EVENT + ",[,",
    "stray brace": "}" + EVENT + ",", "stray quote": EVENT + '",', "stray string": EVENT + ',"a",',
    "stray colon": EVENT + ":", "commas": ",", "colons": ":", "opened arrays": "[", "braces": "}",
    "opened objects": "{", "opened keys": '{"', "spaced objects": "{ ", "opened events": '{"ph":',
    "half events": '{"ph":"X",', "events in arrays": '[{"ph":', "numbers": "1 ", "quotes": '"',
    "spaced quotes": '" ', "backslashes": "\\", "spaces": " ", "lines": "\n", "empty arrays": "[]",
    "listed arrays": "[],", "listed objects": "{},", "empty objects": "{}", "spaced": "{} ",
    "events closed twice": EVENT + "},", "closed arrays": EVENT + "],",
    "nested events": '{"ph":"X","args":{"a":', "unclosed events": '{"ph":"X","name":"a","ts":1,',
    "unclosed arguments": '{"ph":"X","name":"a","ts":1,"args":{',
    "unclosed names": '{"ph":"X","name":"a,"ts":1},',
    "bad arguments": '{"ph":"X","name":"a","ts":1,"args":{"a":[1 2]}},',
    "crossed brackets": '{"ph":"X","name":"a","ts":1,"args":{"a":[1,2}}},',
    "control characters": '{"ph":"X","name":"a\n","ts":1},',
    "two colons": '{"ph":"X" "name"::"a","ts":1},', "hopeless": "{1,", "semicolons": "{;",
    "two commas": EVENT + ",,", "zeros": "\0", "no UTF-8": "\xff", "look-alikes": '{"name":1},',
    "listed look-alikes": '[{"name":1}],', "bare keys": "{a:", "bare members": "{a:1},",
    "words": "a b,",
}  # fmt: skip


def repeated(unit: str, size: int) -> str:
    return unit * max(1, size // len(unit))


def counted(make: Callable[[int], str], size: int) -> str:
    """make(0), make(1), ... with commas, up to a size."""
    parts, length = [], 0
    while length < size:
        parts.append(make(len(parts)))
        length += len(parts[-1]) + 1
    return ",".join(parts)


def trace(events: str, before: str = "", behind: str = "") -> str:
    return "{" + before + '"traceEvents":[' + events + "]" + behind + "}"


def event(**fields: str) -> str:
    """An event of JSON texts."""
    known = {"ph": '"X"', "name": '"a"', "pid": "1", "tid": "1", "ts": "1", "dur": "1"}
    return "{" + ",".join(f'"{key}":{json}' for key, json in (known | fields).items()) + "}"


def string_families(unit: str) -> Iterator[tuple[str, Family]]:
    named = '{"ph":"X","ts":1,"dur":1,"name":"'
    argument = '{"ph":"X","name":"a","ts":1,"args":{"x":["'
    yield "name", lambda n: trace(f'{EVENT},{named}{repeated(unit, n)}"}},{EVENT}')
    yield "open name", lambda n: HEAD + EVENT + "," + named + repeated(unit, n)
    yield "argument", lambda n: trace(f'{EVENT},{argument}{repeated(unit, n)}"]}}}},{EVENT}')
    yield "spaces", lambda n: trace(named + " " * (n // 2) + repeated(unit, n // 2) + '"}')


def text_families(unit: str) -> Iterator[tuple[str, Family]]:
    argument = '{"ph":"X","name":"a","ts":1,"args":{"x":['
    yield "open", lambda n: HEAD + EVENT + "," + repeated(unit, n)
    yield "closed", lambda n: trace(f"{EVENT},{repeated(unit, n)}{EVENT}")
    yield "tolerant", lambda n: trace(f"{EVENT},\x01{repeated(unit, n)}{EVENT}")
    yield "argument", lambda n: trace(f"{EVENT},{argument}{repeated(unit, n)}]}}}},{EVENT}")
    yield "alone", lambda n: repeated(unit, n)
    yield "value before", lambda n: trace(EVENT, before=f'"a":{repeated(unit, n)},')
    yield "value behind", lambda n: trace(EVENT, behind=f',"a":{repeated(unit, n)}')
    yield "before", lambda n: trace(EVENT, before=repeated(unit, n))
    yield "behind", lambda n: trace(EVENT, behind="," + repeated(unit, n))


def many(make: Callable[[int], str]) -> Family:
    return lambda n: trace(counted(make, n))


def arguments(make: Callable[[int], str]) -> Family:
    return lambda n: trace(event(args="{" + counted(make, n) + "}"))


def member_families() -> Iterator[tuple[str, Family]]:
    def before(unit: str) -> Family:
        return lambda n: trace(EVENT, before=repeated(unit, n))

    yield "empty arrays", before('"traceEvents":[],')
    yield "arrays of an event", before(f'"traceEvents":[{EVENT}],')
    yield "arrays of a thousand", before(f'"traceEvents":[{(EVENT + ",") * 999}{EVENT}],')
    yield "arrays and members", before('"traceEvents":[],"aaa":{"x":[1,2,3]},')
    yield "keys without arrays", before('"traceEvents" ')
    yield "keys with colons", before('"traceEvents": ')
    yield "equal members", before('"k":1,')
    yield "crossed members", before('"k":[1,2},')
    yield "escaped members", before('"k":"\\x",')
    yield "ranks", before('"distributedInfo":{"rank":1},')
    yield "lists of devices", before('"deviceProperties":[{}],')
    yield (
        "devices",
        lambda n: trace(EVENT, before=f'"deviceProperties":[{repeated("{},", n)}{{}}],'),
    )
    yield "members", lambda n: trace(EVENT, before=counted(lambda i: f'"k{i}":1', n) + ",")
    yield "members behind", lambda n: trace(EVENT, behind="," + counted(lambda i: f'"k{i}":1', n))
    yield "lines", lambda n: repeated(EVENT + "\n", n)
    yield "lines and tokens", lambda n: repeated(EVENT + "\n1\n", n)
    yield "lines and metadata", lambda n: repeated('{"a":1}\n' + EVENT + "\n", n)


def event_families() -> Iterator[tuple[str, Family]]:
    name = '{"ph":"M","name":"process_name","pid":1,"args":{"name":"%s"}}'
    yield "deep arrays", lambda n: trace(event(args='{"a":' + "[" * n + "]" * n + "}"))
    yield "deep objects", lambda n: trace(event(args='{"a":' * (n // 6) + "1" + "}" * (n // 6)))
    yield "numbers", arguments(lambda i: f'"k{i}":{i}')
    yield "texts", arguments(lambda i: f'"k{i}":"v"')
    yield "equal keys", arguments(lambda i: '"k":1')
    yield "correlations", arguments(lambda i: f'"correlation":{i}')
    yield "starts", lambda n: trace(EVENT[:-1] + repeated(',"ts":1', n) + "}")
    yield "missing commas", lambda n: trace("{" + repeated('"ph":"X" ', n) + '"ts":1}')
    yield "long integer", lambda n: trace(event(ts="1" * n))
    yield "long fraction", lambda n: trace(event(ts="1." + "1" * n))
    yield "long exponent", lambda n: trace(event(ts="1e" + "1" * n))
    yield "templates", many(lambda i: event(ts=f"{i}", args=f'{{"a":"{i}"}}'))
    yield "templates of keys", many(lambda i: event(ts=f"{i}", args=f'{{"a{i}":1}}'))
    yield "names", many(lambda i: event(ts=f"{i}", name=f'"n{i}"'))
    yield "threads", many(lambda i: event(ts=f"{i}", tid=f"{i}"))
    yield "processes", many(lambda i: event(ts=f"{i}", pid=f"{i}"))
    yield "names of a process", many(lambda i: name % f"x{i}")
    yield (
        "long process, many threads",
        lambda n: trace(
            name % ("x" * (n // 2)) + "," + counted(lambda i: event(tid=f"{i}"), n // 2)
        ),
    )
    yield "one start", many(lambda i: event(args=f'{{"a":{i}}}'))
    yield "one start, long names", many(lambda i: event(name='"' + "n" * 1000 + f'{i}"'))
    yield "equal events", many(lambda i: EVENT)
    yield "begins", many(lambda i: event(ph='"B"', ts=f"{i}"))
    yield "ends", many(lambda i: event(ph='"E"', ts=f"{i}"))
    yield (
        "crossed",
        lambda n: trace(
            counted(lambda i: event(ph='"B"', ts=f"{i}", name=f'"n{i}"'), n // 2)
            + ","
            + counted(lambda i: event(ph='"E"', ts=f"{i + 10**7}", name=f'"n{i}"'), n // 2)
        ),
    )


def families() -> Iterator[tuple[str, Family]]:
    for what, unit in IN_STRINGS.items():
        yield from ((f"string, {where}: {what}", make) for where, make in string_families(unit))
    for what, unit in BETWEEN.items():
        yield from ((f"text, {where}: {what}", make) for where, make in text_families(unit))
    yield from ((f"members: {what}", make) for what, make in member_families())
    yield from ((f"events: {what}", make) for what, make in event_families())


@dataclass(frozen=True)
class Run:
    """One text, read one way."""

    family: str
    way: str
    bytes: int
    seconds: float
    """Of the processor; the limit if it was stopped."""
    peak_mb: float
    """Of memory above what the text takes."""
    events: int
    """-1 if it is no trace, -2 if reading was stopped."""


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def read(content: bytes, chunk_bytes: int, pipe: int) -> None:
    idle_mb, start = peak_mb(), time.process_time()
    try:
        events = len(_core.read_trace_bytes(content, "text", threads=1, chunk_bytes=chunk_bytes))
    except TraceError:
        events = -1
    reply = [time.process_time() - start, peak_mb() - idle_mb, events]
    os.write(pipe, json.dumps(reply).encode())


def measure(family: str, way: str, text: bytes, limit_s: int) -> Run:
    content = gzip.compress(text, 1) if way == "gzip" else text
    chunk_bytes = (16 if way == "large chunks" else 1) << 20
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        try:
            read(content, chunk_bytes, writing)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        reply = pipe.read()
    os.waitpid(process, 0)
    seconds, megabytes, events = json.loads(reply) if reply else (float(limit_s), 0.0, -2)
    return Run(family, way, len(text), round(seconds, 3), round(megabytes, 1), events)


def is_defect(small: Run, large: Run) -> bool:
    if large.events == -2 or large.seconds > SECONDS_PER_MB * large.bytes / 1e6:
        return True
    times = large.seconds / max(small.seconds, FLOOR_S)
    memory = large.peak_mb / max(small.peak_mb, FLOOR_MB)
    return max(times, memory) > GROWTH * large.bytes / small.bytes / 4


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bytes", type=int, nargs=2, default=[1_000_000, 4_000_000])
    parser.add_argument("--families", nargs="+", default=[""], help="names that hold one of these")
    parser.add_argument("--limit", type=int, default=30, help="seconds for one text")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found: list[Run] = []
    defects = 0
    for family, make in families():
        if not any(word in family for word in options.families):
            continue
        texts = [make(size).encode("latin-1") for size in options.bytes]
        for way in ("plain", "large chunks", "gzip"):
            small, large = (measure(family, way, text, options.limit) for text in texts)
            found += [small, large]
            if is_defect(small, large):
                defects += 1
                print(f"{small}\n  -> {large}", flush=True)
    slowest = max(found, key=lambda run: run.seconds / run.bytes)
    print(f"{defects} of {len(found) // 2} grow too fast or take too long; slowest: {slowest}")
    if options.output:
        runs = [asdict(run) for run in found]
        write_results(options.output, indent=None, defects=defects, results=runs)


if __name__ == "__main__":
    main()
