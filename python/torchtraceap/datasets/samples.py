"""Load labeled traces as windows with features, for training and evaluation.

Note [Kept]: features and evidence of a trace are computed once and kept beside the data set, in
`.cache/`, a file for each run and grid. Its name holds what they depend on: the labels and the
sizes of the traces, the names of rules, and the version below, which has to change
when any of these is computed in another way. A folder that can't be written is no error.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap import _core
from torchtraceap.core.aliases import Array, PathLike
from torchtraceap.core.intervals import EMPTY
from torchtraceap.core.progress import progress_stage
from torchtraceap.core.threads import map_on_threads
from torchtraceap.core.writing import replacing_stream
from torchtraceap.datasets.excerpts import cut_excerpts
from torchtraceap.datasets.labels import costs_of, covered_share, window_costs, window_labels
from torchtraceap.datasets.runs import Run, labeled_runs
from torchtraceap.datasets.types import CPU_SPLIT, TYPES
from torchtraceap.errors import OptionError, OutputError
from torchtraceap.tables.catalog import check_count
from torchtraceap.tables.detection import detect, judge
from torchtraceap.tables.windows import MOST_TOKENS, Tokens, build_tokens, build_windows
from torchtraceap.trace.ranks import Ranks, RankTrace

__all__ = ["EVIDENCE", "TYPES", "Sample", "load_samples", "window_arrays"]

EVIDENCE = (*TYPES, "any")
"""Columns of `Sample.evidence`."""
_VERSION = 1
"""Version of the stored samples. See Note [Kept]."""
_CACHE = ".cache"


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
    """float32 `[W, F]`: the features of docs/features.md."""
    zscores: Array
    """float32 `[W, F]`: the features, robustly normalized within the trace."""
    evidence: Array
    """float32 `[W, T + 1]`: the part that findings of each type cover; the last column those of
    any type, of `TYPES` or not."""
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
    runs = [run for run in labeled_runs(dataset) if _is_wanted(run.labels[0]["split"], wanted)]
    if excerpts:
        runs = [cut_excerpts(run) for run in runs]
    place = Path(dataset) / _CACHE
    grid = _Grid(windows, between)
    with progress_stage(f"windows of {len(runs)} runs"):
        by_run = map_on_threads(
            lambda run: _samples(run, grid, tokens, gpu_only, place), runs, threads=jobs
        )
    return sorted((sample for found in by_run for sample in found), key=lambda sample: sample.id)


def _is_wanted(split: str | None, wanted: set[str] | None) -> bool:
    return split != CPU_SPLIT if wanted is None else split in wanted


@dataclass(frozen=True)
class _Grid:
    """Windows of a trace: `count` of equal time, or those between their middles."""

    count: int
    between: bool = False

    @property
    def name(self) -> str:
        return f"{self.count}{'-between' * self.between}"

    def of(self, part: RankTrace) -> _core.WindowSet:
        if not self.between:
            return build_windows(part, count=self.count)
        start, end = part.tree.profiled
        half = (end - start) // (2 * self.count)
        return _core.build_windows(
            part.table, part.tree, count=self.count - 1, bounds=(start + half, end - half)
        )


def _samples(run: Run, grid: _Grid, cap: int, gpu_only: bool, place: Path) -> list[Sample]:
    ranks, name = len(run.labels), f"{_digest(run)}-{grid.name}"
    windows = _once(place / f"{name}.npz", ranks, lambda: _on_grid(run.load(), grid))
    tokens: list[Tokens | None] = [None] * ranks
    if cap:
        kept = place / f"{name}-{'gpu' if gpu_only else ''}{cap}.npz"
        found = _once(kept, ranks, lambda: _tokens(run, grid, cap, gpu_only))
        tokens = [Tokens.of_arrays(arrays) for arrays in found]
    parts = zip(run.labels, windows, tokens, strict=True)
    return [_sample(run, label, arrays, events) for label, arrays, events in parts]


def _sample(
    run: Run, label: dict[str, Any], arrays: dict[str, Array], tokens: Tokens | None
) -> Sample:
    cost = window_costs(costs_of(label), arrays["bounds_ns"])
    positive, ignore = window_labels(cost)
    return Sample(
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
        tokens=tokens,
        **arrays,
    )


def window_arrays(trace: Ranks, count: int) -> list[dict[str, Array]]:
    """Bounds, values, z-scores and evidence of a `Sample` for each rank; what ranks of one run tell
    of each other counts."""
    return _on_grid(trace, _Grid(count))


def _on_grid(trace: Ranks, grid: _Grid) -> list[dict[str, Array]]:
    evidence = _evidence(trace)
    return [
        _rank_sample(part, grid, found) for part, found in zip(trace.ranks, evidence, strict=True)
    ]


def _tokens(run: Run, grid: _Grid, cap: int, gpu_only: bool) -> list[dict[str, Array]]:
    """Return the tokens of each rank."""
    more = not gpu_only
    return [
        build_tokens(
            part, windows=grid.of(part), cap=cap, gaps=more, host=more, continued=more
        ).arrays()
        for part in run.load().ranks
    ]


def _rank_sample(part: RankTrace, grid: _Grid, found: dict[str, Array]) -> dict[str, Array]:
    windows = grid.of(part)
    bounds_ns = np.array(windows.bounds_ns, dtype=np.int64)
    block = _core.build_features(part.table, part.tree, windows)
    every = np.concatenate([EMPTY, *found.values()])
    sets = [*(found.get(name, EMPTY) for name in TYPES), every]
    return {
        "bounds_ns": bounds_ns,
        "values": block.values.astype(np.float32),
        "zscores": block.zscores.astype(np.float32),
        "evidence": np.stack([covered_share(each, bounds_ns) for each in sets], axis=1),
    }


def _evidence(trace: Ranks) -> list[dict[str, Array]]:
    """Return for each rank the intervals of the types that are present in the trace, int64 `[n,
    2]`."""
    present = {name: parts for name, parts in detect(trace).items() if judge(parts) == "present"}
    return [
        {
            name: parts[place][1].intervals
            for name, parts in present.items()
            if parts[place][1].verdict != "unknown"
        }
        for place in range(len(trace.ranks))
    ]


# ------------------------------------------------------------------------------ what is kept


def _digest(run: Run) -> str:
    """Return the digest that identifies a run's samples; see Note [Kept]."""
    names = [rule.type for rule in _core.rules()]
    about = [_VERSION, TYPES, names, run.size, run.labels]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:20]


def _once(
    path: Path, ranks: int, compute: Callable[[], list[dict[str, Array]]]
) -> list[dict[str, Array]]:
    """Arrays of each rank, from a file that an earlier call wrote where there is one."""
    kept = _load_stored(path, ranks)
    if kept is None:
        kept = compute()
        _keep(path, kept)
    return kept


def _load_stored(path: Path, ranks: int) -> list[dict[str, Array]] | None:
    """Return what an earlier call stored, None if it is absent or incomplete."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None
    found: list[dict[str, Array]] = [{} for _ in range(ranks)]
    for key, array in arrays.items():
        rank, _, name = key.partition(".")
        found[int(rank)][name] = array
    return found


def _keep(path: Path, arrays: Sequence[dict[str, Array]]) -> None:
    flat = {f"{rank}.{name}": array for rank, of in enumerate(arrays) for name, array in of.items()}
    with suppress(OSError, OutputError):
        path.parent.mkdir(exist_ok=True)
        with replacing_stream(path) as stream:
            np.savez_compressed(stream, allow_pickle=False, **flat)
