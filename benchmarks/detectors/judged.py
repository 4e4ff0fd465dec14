"""What the offline judge names, and what its doubts change, on labelled traces.

    python benchmarks/detectors/judged.py DATASET... [--split NAME ...] [--corpus CORPUS] --why TEXT
        [--output FILE]

Nobody should have learned from a DATASET (another seed); then each of its splits counts. With
CORPUS, a folder of the public traces that were labelled by looking (docs/evaluation.md), these are
judged too. Types are named by the judge and by simpler rules, given the windows that lose time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap.core.results import PAPER_TYPES
from torchtraceap.datasets.labels import POSITIVE, TYPES
from torchtraceap.datasets.reader import labeled_runs
from torchtraceap.diagnosis.result import Diagnosis
from torchtraceap.explanation.offline_judge import OfflineJudge
from torchtraceap.explanation.segments import NONE, Segment, cost_inside, likely_types, rule_says
from torchtraceap.lab.evaluation.judge_loop import count_loop
from torchtraceap.lab.evaluation.judged_traces import (
    LabeledTrace,
    labeled_traces,
    log_look,
    name_windows,
    true_segments,
)
from torchtraceap.lab.evaluation.metrics import confusion, draws, interval, type_metrics
from torchtraceap.lab.evaluation.tables import all_numbers, numbers
from torchtraceap.trace.loader import load

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

from public_labels import RealLabels, read_real_labels, read_recordings

LABELS = Path(__file__).with_name("real_labels")
WINDOWS = 100
JUDGE = "offline judge"
Names = Sequence[str]
Grouped = tuple[str, LabeledTrace]
"""With the name of a group: traces of one depend on each other."""


# ------------------------------------------------------------------------ ways to name a window


def by_window(labelled: LabeledTrace) -> Names:
    """The scorer's likeliest type of each window."""
    windows = labelled.diagnosis.windows
    kinds = list(windows.types)
    places = np.stack([windows.types[kind] for kind in kinds]).argmax(axis=0)
    return [kinds[place] for place in places.tolist()]


def by_segment(name: Callable[[Diagnosis, Segment], str]) -> Callable[[LabeledTrace], Names]:
    """One name for each true segment."""

    def names(labelled: LabeledTrace) -> Names:
        found = [NONE] * labelled.diagnosis.windows.count
        for segment in true_segments(labelled):
            count = segment.last - segment.first + 1
            found[segment.first : segment.last + 1] = [name(labelled.diagnosis, segment)] * count
        return found

    return names


def likeliest(diagnosis: Diagnosis, segment: Segment) -> str:
    return likely_types(diagnosis.windows, segment.first, segment.last)[0][0]


def none_where_excluded(diagnosis: Diagnosis, segment: Segment) -> str:
    name = likeliest(diagnosis, segment)
    return NONE if rule_says(diagnosis, name) == "absent" else name


def not_excluded(diagnosis: Diagnosis, segment: Segment) -> str:
    """The likeliest of those that the rules don't exclude."""
    likely = likely_types(diagnosis.windows, segment.first, segment.last)
    kept = [name for name, _ in likely if rule_says(diagnosis, name) != "absent"]
    return kept[0] if kept else NONE


def dearest(diagnosis: Diagnosis, segment: Segment) -> str:
    """The finding that costs most there; "none" without one."""
    costs = {
        finding.type: cost_inside(finding, segment.start_ns, segment.end_ns)
        for finding in diagnosis.findings
    }
    best = max(costs, key=lambda name: costs[name], default=NONE)
    return best if costs.get(best) else NONE


def dearest_or_not_excluded(diagnosis: Diagnosis, segment: Segment) -> str:
    found = dearest(diagnosis, segment)
    return not_excluded(diagnosis, segment) if found == NONE else found


def likeliest_present(diagnosis: Diagnosis, segment: Segment) -> str:
    """The likeliest of those that the rules found; else of those that they don't exclude."""
    likely = likely_types(diagnosis.windows, segment.first, segment.last)
    present = [name for name, _ in likely if rule_says(diagnosis, name) == "present"]
    return present[0] if present else not_excluded(diagnosis, segment)


def likeliest_here(diagnosis: Diagnosis, segment: Segment) -> str:
    """The likeliest of those whose findings cost a tenth of the segment; else not excluded."""
    length_ns = segment.end_ns - segment.start_ns
    here = {
        finding.type
        for finding in diagnosis.findings
        if cost_inside(finding, segment.start_ns, segment.end_ns) >= POSITIVE * length_ns
    }
    likely = likely_types(diagnosis.windows, segment.first, segment.last)
    found = [name for name, _ in likely if name in here]
    return found[0] if found else not_excluded(diagnosis, segment)


def by_judge(labelled: LabeledTrace) -> Names:
    segments = true_segments(labelled)
    return name_windows(labelled.diagnosis, segments, OfflineJudge).names


WAYS: dict[str, Callable[[LabeledTrace], Names]] = {
    "scorer, by window": by_window,
    "scorer, by segment": by_segment(likeliest),
    "none where the rules exclude it": by_segment(none_where_excluded),
    "likeliest that the rules don't exclude": by_segment(not_excluded),
    "likeliest that the rules found, else not excluded": by_segment(likeliest_present),
    "likeliest that the rules found there, else not excluded": by_segment(likeliest_here),
    "finding that costs most there, else none": by_segment(dearest),
    "finding that costs most there, else not excluded": by_segment(dearest_or_not_excluded),
    JUDGE: by_judge,
}


class Naming:
    """What each way says of all positive windows whose type is known."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = tuple(kinds)
        self._groups: list[str] = []
        self._truth: list[str] = []
        self._said: dict[str, list[str]] = {way: [] for way in WAYS}

    def add(self, labelled: LabeledTrace, group: str) -> None:
        known = np.flatnonzero(labelled.types >= 0).tolist()
        self._truth += [labelled.type_names[place] for place in known]
        self._groups += [group] * len(known)
        for way, names in WAYS.items():
            said = names(labelled)
            self._said[way] += [said[place] for place in known]

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = {"windows": len(self._truth), "groups": len(set(self._groups))}
        found["ways"] = {way: self._way(said) for way, said in self._said.items()}
        found["judge_less_scorer"] = numbers(self._difference(JUDGE, "scorer, by window"))
        found["confusion"] = self._confusion(JUDGE)
        return found

    def _way(self, said: Sequence[str]) -> dict[str, Any]:
        right = [name == truth for name, truth in zip(said, self._truth, strict=True)]
        value, resampled = self._share(right)
        return {
            **all_numbers(type_metrics(*self._typed(said))),
            "interval": numbers(interval(value, resampled)),
            "no_type_of_labels": sum(name not in self._kinds for name in said),
        }

    def _difference(self, one: str, other: str) -> Any:
        sides = [
            self._share([n == t for n, t in zip(self._said[way], self._truth, strict=True)])
            for way in (one, other)
        ]
        return interval(sides[0][0] - sides[1][0], sides[0][1] - sides[1][1])

    def _share(self, right: Sequence[bool]) -> tuple[float, Any]:
        """Of all windows, and of resamples of groups."""
        names, codes = np.unique(self._groups, return_inverse=True)
        weights = draws(len(names)).astype(np.float64)
        counts = np.bincount(codes, minlength=len(names))
        sums = np.bincount(codes, weights=np.array(right, dtype=float), minlength=len(names))
        return float(np.mean(right)), (weights @ sums) / np.maximum(weights @ counts, 1)

    def _typed(self, said: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """A name that is no type of the labels is the number of types."""
        places = {kind: place for place, kind in enumerate(self._kinds)}
        codes = np.array([places.get(name, len(places)) for name in said])
        return np.array([places[name] for name in self._truth]), codes

    def _confusion(self, way: str) -> dict[str, dict[str, int]]:
        """Windows by type and by name."""
        counts = confusion(*self._typed(self._said[way]), len(self._kinds))
        columns = (*self._kinds, NONE)
        return {
            kind: {name: int(n) for name, n in zip(columns, row, strict=True) if n}
            for kind, row in zip(columns, counts, strict=True)
            if row.any()
        }


# ----------------------------------------------------------------------------------- the traces


def generated_traces(dataset: Path, splits: Sequence[str], why: str) -> Iterator[Grouped]:
    """Of one base each group."""
    bases = {
        label["id"]: label["source"]["base"]
        for run in labeled_runs(dataset)
        for label in run.labels
    }
    for labelled in labeled_traces(dataset, splits, WINDOWS, asked=JUDGE, why=why):
        yield f"{dataset}/{bases[labelled.id]}", labelled


def public_traces(corpus: Path, labels: RealLabels) -> Iterator[Grouped]:
    """With what both passes say; a type where both are certain of one and neither sees another."""
    groups = read_recordings(LABELS / "recordings.json").group
    codes = np.array([*(TYPES.index(name) for name in PAPER_TYPES), -1])
    for path in labels.traces:
        diagnosis = load(corpus / path).diagnose(windows=WINDOWS)
        table = diagnosis.trace.ranks[0].table
        bounds_ns = np.asarray(diagnosis.windows.bounds_ns, dtype=np.int64)
        where = path, bounds_ns, int(table.ts_ns[table.complete].min())
        marks = labels.windows(*where)
        types = codes[labels.window_types(*where)]
        labelled = LabeledTrace(path, diagnosis, marks == 1, marks < 0, types, frozenset())
        yield groups.get(path, path), labelled


def measured(traces: Iterable[Grouped], kinds: Sequence[str]) -> dict[str, Any]:
    """Names given true windows, and the loop."""
    naming = Naming(kinds)

    def seen() -> Iterator[LabeledTrace]:
        for group, labelled in traces:
            naming.add(labelled, group)
            yield labelled

    loop = count_loop(seen(), OfflineJudge, JUDGE)
    return {"naming": naming.document(), "loop": loop.to_dict()}


def show(title: str, found: dict[str, Any]) -> None:
    naming, loop = found["naming"], found["loop"]
    print(f"\n{title}: {naming['windows']} windows of {naming['groups']} groups")
    for way, of in naming["ways"].items():
        figures = f"{of['accuracy']:.3f} {of['macro_f1']:.3f}"
        print(f"  {way:58}{figures} no type of labels: {of['no_type_of_labels']}")
    for told in loop["told"]:
        print("  " + " ".join(f"{key}={value}" for key, value in told.items()))
    print("  " + str({key: loop[key] for key in loop if key not in ("told", "problems")}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("datasets", type=Path, nargs="+", metavar="DATASET")
    parser.add_argument("--split", action="append", default=[])
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--why", required=True, help="what the look at test data is for")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    splits = options.split or ["train", "validation", "seen", "unseen"]
    generated = chain.from_iterable(
        generated_traces(dataset, splits, options.why) for dataset in options.datasets
    )
    found = {"generated": measured(generated, TYPES)}
    show("generated", found["generated"])
    if options.corpus:
        labels = read_real_labels(LABELS)
        log_look("benchmarks/detectors/judged.py", ["real"], [JUDGE], options.why)
        found["public"] = measured(public_traces(options.corpus, labels), PAPER_TYPES)
        show("public", found["public"])
    if options.output:
        about = {"datasets": list(map(str, options.datasets)), "splits": splits}
        write_results(options.output, windows=WINDOWS, **about, **found)


if __name__ == "__main__":
    main()
