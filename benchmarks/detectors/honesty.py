"""Check what has to hold before any number of docs/results/evaluation.md means something.

    python benchmarks/detectors/honesty.py DATASET [--raw FOLDER] [--page PAGE]
    python benchmarks/detectors/honesty.py --collected FOLDER... [--page PAGE]

Reads the splits train and validation of DATASET alone. Bookkeeping is that of their traces, written
as files again, or of those of FOLDER, which `generate` made. Writes the part `honesty` of the page,
and a file of results. Of folders that `collect` made it looks at bookkeeping alone (the part
`honesty-collected`): whether it tells the twin that something was put into, be it a fault, a decoy
or too little of one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from torchtraceap.core.aliases import Array
from torchtraceap.datasets.samples import Sample, load_samples
from torchtraceap.lab.evaluation.baselines import Chance, Windows
from torchtraceap.lab.evaluation.judged_traces import check_splits
from torchtraceap.lab.evaluation.learned_baselines import SupervisedTrees
from torchtraceap.lab.evaluation.metrics import Scored, window_auc
from torchtraceap.lab.evaluation.tables import fill_parts, markdown

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import write_results

from bookkeeping import Books, books_of, sided_features, told_by_bookkeeping

SEEDS = 5
SPLITS = ("train", "validation")


def chance(samples: list[Sample]) -> float:
    """Mean AUC of numbers drawn at random."""
    positive = np.concatenate([sample.positive for sample in samples])
    none = np.zeros(len(positive), dtype=np.int64)
    found = []
    for seed in range(SEEDS):
        method = Chance()
        method.fit([], seed)
        scores = np.concatenate([method.score(sample) for sample in samples])
        found.append(window_auc(Scored(scores, positive, positive, none, none)))
    return float(np.mean(found))


def shuffled_training(
    train: Sequence[Sample], test: Sequence[Sample], seeds: Sequence[int] = range(5)
) -> float:
    """Mean AUC of boosted trees that learned from windows whose labels were dealt at random.

    Args:
        train: Traces to learn from; their windows swap labels among each other.
        test: Traces of other groups, with their own labels.
        seeds: One training for each.
    """
    windows, learned = Windows(test), Windows(train)
    ends = np.cumsum([len(sample.positive) for sample in train])[:-1]
    found = []
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(len(learned.trace))
        dealt = [
            replace(
                sample,
                cost=learned.cost[rows],
                positive=learned.positive[rows],
                ignore=learned.ignore[rows],
            )
            for sample, rows in zip(train, np.split(order, ends), strict=True)
        ]
        model = _fitted(dealt, seed)
        score = np.concatenate([model.score(sample) for sample in test])
        kept = ~windows.ignore
        scored = Scored(score, windows.positive, windows.bad, windows.trace, windows.trace)
        found.append(window_auc(scored.part(kept)))
    return float(np.mean(found))


@dataclass(frozen=True)
class HeldOut:
    """A form of fault: AUC on its windows, with traces of that form learned from and without."""

    form: str
    traces: int
    known: float
    unknown: float


def held_out_forms(samples: Sequence[Sample], seed: int = 0, folds: int = 3) -> list[HeldOut]:
    """Measure how well boosted trees find forms of faults that they never saw, out of fold by
    groups.

    Args:
        samples: Traces of training and validation; a form has two groups at least, or is left out.
        seed: Of folds and models.
        folds: Of groups; each takes a training with the form and one without.
    """
    from sklearn.model_selection import GroupKFold

    groups = [sample.group for sample in samples]
    cuts = list(GroupKFold(folds).split(groups, groups=groups))
    forms = sorted({sample.form for sample in samples if sample.label})
    scores: dict[str, list[tuple[Array, Array, Array]]] = {form: [] for form in forms}
    for train, test in cuts:
        known = _fitted([samples[i] for i in train], seed)
        for form in forms:
            # Traces with that form and their twins.
            bad = [samples[i] for i in test if samples[i].form == form]
            twins = {sample.twin for sample in bad}
            tested = [*bad, *(samples[i] for i in test if samples[i].id in twins)]
            rest = [samples[i] for i in train if samples[i].form != form]
            if not tested or not any(sample.positive.any() for sample in rest):
                continue
            windows, models = Windows(tested), (known, _fitted(rest, seed))
            kept = ~windows.ignore
            said = [np.concatenate([m.score(s) for s in tested])[kept] for m in models]
            scores[form].append((windows.positive[kept], said[0], said[1]))
    rows = []
    for form, found in scores.items():
        if found:
            positive, *sides = (np.concatenate(column) for column in zip(*found, strict=True))
            none = np.zeros(len(positive), dtype=np.int64)
            aucs = [window_auc(Scored(side, positive, positive, none, none)) for side in sides]
            traces = sum(sample.form == form for sample in samples)
            rows.append(HeldOut(form, traces, aucs[0], aucs[1]))
    return rows


def _fitted(samples: Sequence[Sample], seed: int) -> SupervisedTrees:
    model = SupervisedTrees()
    model.fit(samples, seed)
    return model


def measured(dataset: Path, raw: Path | None) -> dict[str, Any]:
    """All checks."""
    samples = load_samples(dataset, splits=SPLITS, windows=100)
    check_splits(samples)
    sides = [[s for s in samples if s.split == split] for split in SPLITS]
    return {
        "chance": chance(samples),
        "shuffled": shuffled_training(sides[0], sides[1], range(SEEDS)),
        **told(books_of(raw) if raw else books_of(dataset, SPLITS)),
        "forms": [vars(each) for each in held_out_forms(samples, folds=2)],
    }


def told(books: list[Books]) -> dict[str, Any]:
    """Return what bookkeeping tells."""
    return {
        "bookkeeping": {name: vars(by) for name, by in told_by_bookkeeping(books).items()},
        "sided": [vars(each) for each in sided_features(books)],
        "books": [len(books), sum(b.label for b in books), len({b.group for b in books})],
    }


def of_collected(folders: list[Path]) -> dict[str, Any]:
    """Return what bookkeeping of all collected traces tells; numbers of pairs begin anew in each
    folder."""
    return told(
        [
            replace(each, pair=f"{folder}/{each.pair}", run=f"{folder}/{each.run}")
            for folder in folders
            for each in books_of(folder, put_in=True)
        ]
    )


def page_part(found: dict[str, Any]) -> str:
    """Return the part of the page."""
    traces, bad, groups = found["books"]
    rows = [["check", "wanted", "measured"]]
    rows.append(["chance", "50 +- 1", f"{100 * found['chance']:.1f}"])
    shuffled = f"{100 * found['shuffled']:.1f}"
    rows.append(["training on labels dealt at random", "50 +- 3", shuffled])
    rows += told_rows(found)
    forms = [["form", "traces", "AUC, learned from", "AUC, never seen"]]
    forms += [
        [f"`{f['form']}`", str(f["traces"]), f"{100 * f['known']:.1f}", f"{100 * f['unknown']:.1f}"]
        for f in found["forms"]
    ]
    return (
        f"Bookkeeping of {traces} generated traces, {bad} with a fault, on {groups} bases:\n\n"
        f"{markdown(rows)}\n\nForms of faults, boosted trees S on train and validation, out of "
        f"fold by groups, on windows of traces with the form and their twins:\n\n{markdown(forms)}"
    )


def told_rows(found: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, by in found["bookkeeping"].items():
        value, low, high = (100 * by[key] for key in ("value", "low", "high"))
        rows.append(
            [f"bookkeeping alone, {name}", "50 +- 5", f"{value:.1f} ({low:.1f} to {high:.1f})"]
        )
    sided = ", ".join(f"{s['name']} ({s['higher']}:{s['lower']})" for s in found["sided"])
    rows.append(["features that tell a fault from its twin", "none", sided or "none"])
    return rows


def collected_part(found: dict[str, Any]) -> str:
    """Return the part of the page."""
    traces, changed, groups = found["books"]
    rows = [["check", "wanted", "measured"], *told_rows(found)]
    return (
        f"Bookkeeping of {traces} collected traces, {changed} with something put in, of {groups} "
        f"families of models:\n\n{markdown(rows)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="honesty checks")
    parser.add_argument("dataset", type=Path, nargs="?")
    parser.add_argument("--raw", type=Path, help="folder that generate made")
    parser.add_argument("--collected", type=Path, nargs="+", help="folders that collect made")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.collected:
        found = of_collected(options.collected)
        part, text = "honesty-collected", collected_part(found)
    elif options.dataset:
        found = measured(options.dataset, options.raw)
        part, text = "honesty", page_part(found)
    else:
        parser.error("DATASET, or --collected")
    print(text)
    if options.page:
        page = options.page.read_text("utf-8")
        options.page.write_text(fill_parts(page, {part: text}), "utf-8")
    if options.output:
        write_results(options.output, **found)


if __name__ == "__main__":
    main()
