"""Load labeled traces as windows with features, for training and evaluation.

Note [Stored samples]: features and evidence of a trace are computed once and stored beside the
data set, in `.cache/`, a file for each run and grid. Its name holds what they depend on: the labels
and the content of the traces, the names of rules, and the version below, which has to change when
any of these is computed in another way. A folder that can't be written is no error. Who gave us the
data set may have put anything there: arrays of other shapes are computed anew, and nothing is
read or written through a link.

Note [Excerpts]: recordings may be as short as one kernel, and generated ones are steps long. What
learns from those alone takes a short recording for a fault (docs/scorers.md). An excerpt holds 1 to
1,000 launches of one of the ranks, tenfold more being as likely each time, and what the others do
in that time. Of most runs with a fault it is taken where that costs time.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.intervals import EMPTY, union
from torchtraceap.core.progress import progress_stage
from torchtraceap.core.stored import read_stored
from torchtraceap.core.threads import map_on_threads
from torchtraceap.core.writing import replacing_stream
from torchtraceap.datasets.labels import (
    CPU_SPLIT,
    TYPES,
    costs_of,
    covered_share,
    window_costs,
    window_labels,
)
from torchtraceap.datasets.reader import Run, labeled_runs
from torchtraceap.errors import OptionError, OutputError
from torchtraceap.tables.catalog import check_count
from torchtraceap.tables.detection import present_findings, surprisal
from torchtraceap.tables.windows import (
    MOST_TOKENS,
    Tokens,
    build_tokens,
    build_windows,
    feature_names,
    window_features,
)
from torchtraceap.trace.ranks import Ranks, RankTrace
from torchtraceap.trace.trace import Trace

__all__ = ["EVIDENCE", "TYPES", "Sample", "cut_excerpts", "load_samples", "window_arrays"]

EVIDENCE = (*TYPES, "any")
"""Columns of `Sample.evidence`."""
_VERSION = 2
"""Version of the stored samples. See Note [Stored samples]."""
_CACHE = ".cache"
_MOST_STORED = 1 << 30
"""Bytes of the arrays of a file."""
_LAUNCHES = (0, 3)
"""Exponents of ten."""
_MARGIN = (3, 5)
"""Exponents of ten: nanoseconds before the first launch and behind the last."""
_AT_FAULT = 0.7
"""Probability that an excerpt of a run with a fault is taken where that costs time."""
_TRIES = 20


@dataclass(frozen=True)
class Sample:
    """One trace on one grid of W windows; T types, F features."""

    id: str
    split: str | None
    """"train", "validation", "seen", "unseen" or "real"; None for a trace of one's own."""
    task: str | None
    group: str
    """Origin of the sample; a group is never in two splits."""
    source: str
    """"lifted", "real_graph", ...: where it comes from."""
    device: str | None
    label: bool
    """It has a fault."""
    type: str | None
    form: str
    twin: str | None
    """Id of the same run without the fault."""
    already: tuple[str, ...]
    """Types that are found in what it was made from."""
    run: str
    """Traces of ranks that were recorded together share it."""
    bounds_ns: Array
    """int64 `[W + 1]`."""
    cost: Array
    """float32 `[W, T]`: the part of the window that the cost of each of `TYPES` covers."""
    positive: Array
    """bool `[W]`: one of them is a tenth or more."""
    ignore: Array
    """bool `[W]`: it is less, but a fiftieth or more."""
    values: Array
    """float32 `[W, F]`: the features of docs/scorers.md."""
    zscores: Array
    """float32 `[W, F]`: the features, robustly normalized within the trace."""
    evidence: Array
    """float32 `[W, T + 1]`: the part that findings of each type cover; the last column those of
    any type, of `TYPES` or not."""
    surprisal: Array
    """float64 `[W]`: the `surprisal` of findings of any type, in bits."""
    tokens: Tokens | None = None
    """The events of the windows, where they were asked for."""


def load_samples(
    dataset: PathLike,
    *,
    splits: Iterable[str] | None = None,
    windows: int = 100,
    tokens: int = 0,
    excerpts: bool = False,
    jobs: int = 1,
    between: bool = False,
    gpu_only: bool = False,
) -> list[Sample]:
    """The traces of a data set on one grid.

    Args:
        dataset: A folder that `dataset build` or `generate` made.
        splits: Only traces of these; None: all but those that were collected on a CPU.
        windows: The number of windows of a trace.
        tokens: With the events of the windows, at most so many of each; 0: without.
        excerpts: A short excerpt of each run (`cut_excerpts`) instead of all of it.
        jobs: Traces that are computed at the same time.
        between: One window less, each from the middle of one to the middle of the next.
        gpu_only: Tokens of events of the GPU alone, each in the window of its start.

    Returns:
        By id. What was computed is kept beside the data set.

    Raises:
        OptionError: A number that makes no sense.
        MissingFileError: There is no such folder, or a trace is missing.
        SchemaError: It is no data set, or its labels can't be read.
    """
    check_count("windows", windows - between)
    if jobs < 1:
        raise OptionError(f"{jobs} jobs make no sense")
    if not 0 <= tokens <= MOST_TOKENS:
        raise OptionError(f"{tokens} tokens of a window make no sense")
    wanted = None if splits is None else set(splits)
    runs = []
    for run in labeled_runs(dataset):
        split = run.labels[0]["split"]
        if split != CPU_SPLIT if wanted is None else split in wanted:
            runs.append(cut_excerpts(run) if excerpts else run)
    place = Path(dataset) / _CACHE
    with progress_stage(f"windows of {len(runs)} runs"):
        by_run = map_on_threads(
            lambda run: _run_samples(run, windows, between, tokens, gpu_only, place),
            runs,
            threads=jobs,
        )
    return sorted((sample for found in by_run for sample in found), key=lambda sample: sample.id)


def _run_samples(
    run: Run, count: int, between: bool, cap: int, gpu_only: bool, folder: Path
) -> list[Sample]:
    rules = [rule.type for rule in _core.rules()]
    about = json.dumps([_VERSION, TYPES, rules, run.content(), run.labels])
    digest = hashlib.sha256(about.encode()).hexdigest()[:20]
    name = f"{digest}-{count}{'-between' * between}"
    cut = partial(_cut_windows, count=count, between=between)
    ranks = len(run.labels)
    windows = _stored(
        folder / f"{name}.npz",
        ranks,
        lambda: _rank_arrays(run.load(), cut),
        partial(_fit_windows, count - between),
    )
    tokens: list[Tokens | None] = [None] * ranks
    if cap:
        more = not gpu_only
        found = _stored(
            folder / f"{name}-{'gpu' if gpu_only else ''}{cap}.npz",
            ranks,
            lambda: [
                build_tokens(
                    part, windows=cut(part), cap=cap, gaps=more, host=more, continued=more
                ).arrays()
                for part in run.load().ranks
            ],
            partial(_fit_tokens, count - between, cap),
        )
        tokens = [Tokens.of_arrays(arrays) for arrays in found]
    samples = []
    for label, arrays, events in zip(run.labels, windows, tokens, strict=True):
        cost = window_costs(costs_of(label), arrays["bounds_ns"])
        positive, ignore = window_labels(cost)
        sample = Sample(
            id=label["id"],
            split=label["split"],
            task=label["task"],
            group=label["source"]["base"],
            source=label["source"]["kind"],
            device=label["device"],
            label=label["type"] is not None,
            type=label["type"],
            form=label["form"],
            twin=label["twin"],
            already=tuple(label["already"]),
            run=run.name,
            cost=cost,
            positive=positive,
            ignore=ignore,
            tokens=events,
            **arrays,
        )
        samples.append(sample)
    return samples


def _cut_windows(part: RankTrace, count: int, between: bool) -> _core.WindowSet:
    """Return `count` windows of equal time, or those between their middles."""
    if not between:
        return build_windows(part, count=count)
    start, end = part.tree.profiled
    half = (end - start) // (2 * count)
    return build_windows(part, count=count - 1, within_ns=(start + half, end - half))


def window_arrays(trace: Ranks, count: int) -> list[dict[str, Array]]:
    """Bounds, values, z-scores and evidence of a `Sample` for each rank; what ranks of one run tell
    of each other counts."""
    return _rank_arrays(trace, partial(_cut_windows, count=count, between=False))


def _rank_arrays(
    trace: Ranks, cut: Callable[[RankTrace], _core.WindowSet]
) -> list[dict[str, Array]]:
    present = present_findings(trace)
    arrays: list[dict[str, Array]] = []
    for place, part in enumerate(trace.ranks):
        intervals = {
            name: parts[place][1].intervals
            for name, parts in present.items()
            if parts[place][1].verdict != "unknown"
        }
        every = np.concatenate([EMPTY, *intervals.values()])
        features = window_features(part, cut(part))
        bounds_ns = np.array(features.windows.bounds_ns, dtype=np.int64)
        shares = {name: covered_share(each, bounds_ns) for name, each in intervals.items()}
        of_none = np.zeros(len(bounds_ns) - 1, dtype=np.float32)
        of_types = [shares.get(name, of_none) for name in TYPES]
        bits = surprisal(np.stack([*shares.values(), of_none], axis=1))
        arrays.append(
            {
                "bounds_ns": bounds_ns,
                "values": features.values_matrix.astype(np.float32),
                "zscores": features.zscores.astype(np.float32),
                "evidence": np.stack([*of_types, covered_share(every, bounds_ns)], axis=1),
                "surprisal": bits.sum(axis=1),
            }
        )
    return arrays


_Arrays = dict[str, Array]


def _stored(
    path: Path,
    ranks: int,
    compute: Callable[[], list[_Arrays]],
    fit: Callable[[_Arrays], bool],
) -> list[_Arrays]:
    """Return the arrays of each rank, from a file that an earlier call wrote where they fit.

    See Note [Stored samples].
    """
    if path.is_symlink() or path.parent.is_symlink():
        return compute()
    found = _load_arrays(path, ranks)
    if found is not None and all(map(fit, found)):
        return found
    found = compute()
    flat = {f"{rank}.{name}": array for rank, of in enumerate(found) for name, array in of.items()}
    with suppress(OSError, OutputError):
        path.parent.mkdir(exist_ok=True)
        with replacing_stream(path) as target:
            np.savez_compressed(target, allow_pickle=False, **flat)
    return found


def _load_arrays(path: Path, ranks: int) -> list[_Arrays] | None:
    """Return the arrays of a file by rank; None where it can't be read."""
    try:
        data = read_stored(path, most=_MOST_STORED)
        with zipfile.ZipFile(BytesIO(data)) as packed:
            if sum(entry.file_size for entry in packed.infolist()) > _MOST_STORED:
                return None
        found: list[_Arrays] = [{} for _ in range(ranks)]
        with np.load(BytesIO(data), allow_pickle=False) as file:
            for key in file.files:
                rank, _, name = key.partition(".")
                found[int(rank)][name] = file[key]
    except (OSError, ValueError, EOFError, IndexError, zipfile.BadZipFile, zlib.error,
            MemoryError, NotImplementedError, RuntimeError, SyntaxError):  # fmt: skip
        return None
    return found


def _fit_windows(count: int, arrays: _Arrays) -> bool:
    """Are these what `_rank_arrays` makes for so many windows?"""
    wanted = {
        "bounds_ns": ("i8", (count + 1,)),
        "values": ("f4", (count, len(feature_names()))),
        "zscores": ("f4", (count, len(feature_names()))),
        "evidence": ("f4", (count, len(EVIDENCE))),
        "surprisal": ("f8", (count,)),
    }
    found = {name: (array.dtype.str[1:], array.shape) for name, array in arrays.items()}
    return found == wanted and bool((np.diff(arrays["bounds_ns"]) >= 0).all())


_CODES = {"kind": len(_core.TokenKind.__members__), "class_code": len(_core.token_class_names()),
          "stream_role": 4, "delay_code": 257, "duration_code": 256}  # fmt: skip
"""How many values there are of each code of a token."""


def _fit_tokens(count: int, cap: int, arrays: _Arrays) -> bool:
    """Are these tokens of so many windows, with at most `cap` in each?"""
    if arrays.keys() != {each.name for each in fields(Tokens)}:
        return False
    names, offsets = arrays["names"], arrays["offsets"]
    if names.dtype.kind != "U" or offsets.shape != (count + 1,) or offsets.dtype.kind != "u":
        return False
    sizes = np.diff(offsets.astype(np.int64))
    if offsets[0] or sizes.min(initial=0) < 0 or sizes.max(initial=0) > cap:
        return False
    limits = {**_CODES, "name": len(names), "cpu_name": len(names)}
    for name, array in arrays.items():
        rows = count if name == "folded" else int(offsets[-1])
        if name in ("names", "offsets"):
            continue
        kinds = "f" if name == "position" else "iu"
        if array.shape != (rows,) or array.dtype.kind not in kinds or not np.isfinite(array).all():
            return False
        if name in limits and rows and not 0 <= array.min() <= array.max() < limits[name]:
            return False
    return True


# ------------------------------------------------------------------------------ excerpts


def cut_excerpts(run: Run) -> Run:
    """An excerpt of a run, always the same; its ids end in "/excerpt". See Note [Excerpts].

    A run of which no part has GPU events on all ranks stays whole.
    """
    labels = tuple({**label, "id": f"{label['id']}/excerpt"} for label in run.labels)
    return replace(run, labels=labels, load=lambda: _cut_excerpt(run))


def _cut_excerpt(run: Run) -> Trace:
    whole = run.load()
    draw = np.random.default_rng(zlib.crc32(run.name.encode()))
    place = int(draw.integers(len(whole.ranks)))
    part = whole.ranks[place]
    calls = part.tree.launch[part.tree.linked_gpu_rows]
    launches_ns = np.unique(part.table.ts_ns[calls])
    cost_ns = union(list(costs_of(run.labels[place]).values()))
    for _ in range(_TRIES if len(launches_ns) > 1 else 0):
        start_ns, end_ns = _draw_window(launches_ns, cost_ns, draw)
        found = []
        for each in whole.ranks:
            table, tree = _core.excerpt(each.table, each.tree, np.array([[start_ns, end_ns]]))
            found.append(RankTrace(table, each.rank, tree))
        spans = [each.tree.profiled for each in found if len(each.tree.gpu_rows)]
        if len(spans) == len(found) and all(end > start for start, end in spans):
            return Trace(found)
    return whole


def _draw_window(launches_ns: Array, cost_ns: Array, draw: np.random.Generator) -> tuple[int, int]:
    count = min(round(10 ** draw.uniform(*_LAUNCHES)), len(launches_ns) - 1)
    most = len(launches_ns) - count - 1
    first = int(draw.integers(most + 1))
    if len(cost_ns) and draw.random() < _AT_FAULT:
        at_ns = draw.uniform(*cost_ns[draw.integers(len(cost_ns))])
        behind = int(np.searchsorted(launches_ns, at_ns))
        first = int(np.clip(behind - draw.integers(count + 1), 0, most))
    before, after = (round(10 ** draw.uniform(*_MARGIN)) for _ in range(2))
    return int(launches_ns[first]) - before, int(launches_ns[first + count]) + after
