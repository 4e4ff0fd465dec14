"""Learned scorers: weights are checked, and trees say what the library that grew them says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import report_samples as samples
from conftest import WriteTrace

import torchtraceap as ttap
from torchtraceap import _core
from torchtraceap.datasets.labels import covered_share
from torchtraceap.diagnosis.scoring import common_bounds, load_scorer
from torchtraceap.diagnosis.scoring.fused import FusedScorer
from torchtraceap.diagnosis.scoring.structural import (
    ZSCORE_SUFFIX,
    StructuralScorer,
    columns_of,
    probability,
)
from torchtraceap.diagnosis.scoring.weight_files import read_weights, shipped, write_weights
from torchtraceap.errors import MissingFileError, SchemaError
from torchtraceap.tables.detection import surprisal

LEARNED = ("structural", "fused")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def trees() -> dict[str, Any]:
    """Column 0 <= 1 ? 10 : 20."""
    return {
        "feature": np.array([0], np.int32), "threshold": np.array([1.0]),
        "left": np.array([~0], np.int32), "right": np.array([~1], np.int32),
        "leaf": np.array([10.0, 20.0]), "root": np.array([0], np.int32),
        "output": np.array([0], np.int32), "columns": 2, "outputs": 1,
    }  # fmt: skip


# --- trees of the core ---


def test_trees_sum_their_leaves(trees: dict[str, Any]) -> None:
    made = _core.Trees(**trees)
    assert (made.columns, made.outputs) == (2, 1)
    assert made.sums(np.array([[1.0, 0.0], [1.5, 0.0]])).tolist() == [[10.0], [20.0]]
    assert made.sums(np.empty((0, 2))).shape == (0, 1)


@pytest.mark.parametrize(
    ("part", "values", "complaint"),
    [
        ("feature", [2], "no such column"),
        ("threshold", [np.nan], "not a number"),
        ("left", [0], "leads nowhere, or back"),
        ("right", [-9], "leads nowhere, or back"),
        ("leaf", [1.0, np.inf], "not finite"),
        ("root", [3], "no such root"),
        ("output", [1], "no such output"),
        ("output", [0, 0], "differ in length"),
        ("left", [], "differ in length"),
    ],
)
def test_arrays_that_are_no_trees_are_refused(
    trees: dict[str, Any], part: str, values: list[float], complaint: str
) -> None:
    broken = trees | {part: np.array(values, dtype=trees[part].dtype)}
    with pytest.raises(SchemaError, match=complaint):
        _core.Trees(**broken)


def test_values_of_another_width_are_refused(trees: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match=r"values must be \[rows, 2\]"):
        _core.Trees(**trees).sums(np.zeros((3, 3)))
    with pytest.raises(SchemaError, match=r"feature must be \[n\]"):
        _core.Trees(**trees | {"feature": np.zeros((1, 1), np.int32)})


# --- the files ---


def changed(path: Path, out: Path, **changes: Any) -> Path:
    """A copy of weights with other arrays, or with `None` without them."""
    weights = read_weights(path)
    arrays = {k: v for k, v in (weights.arrays | changes).items() if v is not None}
    write_weights(out, arrays, weights.about)
    return out


def test_weights_are_the_same_bytes_again(tmp_path: Path) -> None:
    for name in LEARNED:
        copy = changed(shipped(name), tmp_path / name)
        assert copy.read_bytes() == shipped(name).read_bytes()


@pytest.mark.parametrize("damage", [b"", b"\xff" * 64, b"{}"])
def test_damaged_files_are_refused(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(damage)
    with pytest.raises(SchemaError, match="can't be read"):
        read_weights(path)
    path.write_bytes(shipped("structural").read_bytes()[:-100])
    with pytest.raises(SchemaError, match="can't be read"):
        read_weights(path)
    with pytest.raises(MissingFileError, match="no such file"):
        read_weights(tmp_path / "none")


def test_weights_of_wrong_shapes_are_refused(tmp_path: Path) -> None:
    ours = shipped("structural")
    scale = np.ones(3, np.float32)
    for name, value, complaint in (
        ("calibration", scale, "calibration is not there as float64"),
        ("calibration", np.ones(3), "calibration are not 2 finite numbers"),
        ("calibration", np.array([1.0, np.nan]), "calibration are not 2 finite numbers"),
        ("any.leaf", None, "any.leaf is not there"),
        ("any.root", np.array([2**30], np.int32), "differ in length"),
        ("type.left", np.zeros_like(read_weights(ours).arrays["type.left"]), "leads nowhere"),
    ):
        path = changed(ours, tmp_path / "x", **{name: value})
        with pytest.raises(SchemaError, match=complaint):
            StructuralScorer(read_weights(path))
    with pytest.raises(SchemaError, match="another scorer"):
        StructuralScorer(read_weights(shipped("fused")))
    trees = StructuralScorer(read_weights(ours))
    with pytest.raises(SchemaError, match="another scorer"):
        FusedScorer(read_weights(ours), trees)
    path = changed(shipped("fused"), tmp_path / "y", weights=np.ones(9))
    with pytest.raises(SchemaError, match="weights are not 3 finite numbers"):
        FusedScorer(read_weights(path), trees)


def test_features_that_there_are_not_are_named() -> None:
    names = ["busy_share"]
    values = np.array([[0.1]])
    assert columns_of(
        ["busy_share" + ZSCORE_SUFFIX, "busy_share"], names, values, values + 1
    ).tolist() == [[float(np.float32(1.1)), float(np.float32(0.1))]]
    with pytest.raises(SchemaError, match="that there are not: lazy_share"):
        columns_of(["lazy_share"], names, values, values)


# --- scores ---


def test_lost_time_scores_higher(write_trace: WriteTrace) -> None:
    slow = ttap.load(samples.slow_loader().write(write_trace([], "slow.json")))
    good = ttap.load(samples.healthy().write(write_trace([], "good.json")))
    for name in LEARNED:
        assert slow.score(scorer=name).scores.max() > good.score(scorer=name).scores.max()


@pytest.mark.parametrize("name", LEARNED)
def test_no_type_exceeds_the_window(write_trace: WriteTrace, name: str) -> None:
    windows = ttap.load(samples.slow_loader().write(write_trace([]))).score(scorer=name)
    together = np.sum(list(windows.types.values()), axis=0)
    assert together.max() > 0 and (together <= windows.scores + 1e-9).all()


@pytest.mark.parametrize("name", LEARNED)
def test_without_gpu_events_nothing_is_said(write_trace: WriteTrace, name: str) -> None:
    trace = ttap.load(samples.host_only().write(write_trace([])))
    assert trace.score(scorer=name).scores.max() == 0


@pytest.mark.parametrize("name", LEARNED)
def test_the_worst_rank_counts(tmp_path: Path, name: str) -> None:
    for rank, maker in enumerate((samples.healthy(), samples.slow_loader())):
        maker.top["distributedInfo"] = {"rank": rank, "world_size": 2, "backend": "nccl"}
        maker.write(tmp_path / f"rank{rank}.json")
    both = ttap.load(tmp_path)
    bounds_ns = common_bounds(both, 50)
    assert bounds_ns.tolist() == list(both.score(windows=50, scorer=name).bounds_ns)
    structural = load_scorer("structural")
    assert isinstance(structural, StructuralScorer)
    each = [structural.likelihood(structural.evaluate_rank(rank, bounds_ns)) for rank in both.ranks]
    if name == "structural":
        scores = both.score(windows=50, scorer=name).scores
        assert np.allclose(scores, np.max(each, axis=0))


def test_probabilities_do_not_overflow() -> None:
    assert probability(np.array([-1e9, 0.0, 1e9])).tolist() == [0.0, 0.5, 1.0]


def test_torch_is_not_imported(bundled: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys, torchtraceap as ttap\n"
        f"ttap.score({str(bundled)!r}, scorer='fused')\n"
        "assert not {'torch', 'lightgbm', 'sklearn', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- training ---


def test_trees_say_what_their_library_says(tmp_path: Path) -> None:
    lightgbm = pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    from torchtraceap.lab.training.structural import BoosterView, boosted_trees

    draw = np.random.default_rng(0)
    rows = draw.standard_normal((600, 4)).astype(np.float32).astype(np.float64)
    kinds = (rows[:, 0] > 0).astype(int) + (rows[:, 1] * rows[:, 2] > 0.3)
    options = {"verbosity": -1, "num_threads": 1, "use_missing": False, "num_leaves": 7}
    more = {"objective": "multiclass", "num_class": 3}
    one, many = (
        lightgbm.train(options | extra, lightgbm.Dataset(rows, labels), 20)
        for extra, labels in (({"objective": "binary"}, kinds > 0), (more, kinds))
    )

    def sums(arrays: dict[str, Any], outputs: int) -> np.ndarray:
        return _core.Trees(**arrays, columns=4, outputs=outputs).sums(rows)

    every = np.arange(4)
    twice = sums(boosted_trees([BoosterView(one, every)] * 2, 1), 1)[:, 0]
    assert np.allclose(twice, one.predict(rows, raw_score=True), atol=1e-6)
    three = sums(boosted_trees([BoosterView(many, every)], 3), 3)
    assert np.allclose(three, many.predict(rows, raw_score=True), atol=1e-6)
    turned = sums(boosted_trees([BoosterView(one, every[::-1])], 1), 1)[:, 0]
    assert np.allclose(turned, one.predict(rows[:, ::-1], raw_score=True), atol=1e-6)


def made_samples(split: str, count: int, seed: int) -> list[Any]:
    """Traces of which every other one has a fault in ten windows, which `busy_share` shows."""
    from torchtraceap.datasets.labels import TYPES
    from torchtraceap.datasets.samples import Sample

    draw = np.random.default_rng(seed)
    names = _core.feature_names()
    found = []
    for place in range(count):
        values = draw.random((100, len(names)), np.float32)
        cost = np.zeros((100, len(TYPES)), np.float32)
        kind = place // 2 % len(TYPES)
        if place % 2 == 0:
            cost[:10, kind] = 0.5
            values[:10, names.index("busy_share")] += 1
            values[:10, names.index("copy_count")] = kind * 10
        found.append(
            Sample(
                id=f"{split}{place:03}", split=split, task="x", group=str(place // 2),
                source="lifted", device=("A", "B")[place // 2 % 2], label=place % 2 == 0,
                type=TYPES[kind] if place % 2 == 0 else None, form="x", twin=None, already=(),
                run=str(place), bounds_ns=np.arange(101), cost=cost, positive=cost.max(1) >= 0.1,
                ignore=np.zeros(100, bool), values=values, zscores=values,
                evidence=np.zeros((100, len(TYPES) + 1), np.float32), surprisal=np.zeros(100),
            )
        )  # fmt: skip
    return found


@pytest.fixture
def made_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """`load_samples` gives made traces."""
    for package in ("lightgbm", "sklearn"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from torchtraceap.lab.training import fused, structural

    def load(
        path: object, *, splits: list[str], windows: int = 100, excerpts: bool = False
    ) -> list[Any]:
        (split,) = splits
        return made_samples(split, 24 if split == "train" else 8, seed=len(split))

    for module in (structural, fused):
        monkeypatch.setattr(module, "load_samples", load)


@pytest.mark.slow  # trains networks or trees
@pytest.mark.usefixtures("made_dataset")
@pytest.mark.parametrize("track", ["S", "W"])
def test_trees_learn_where_time_is_lost(tmp_path: Path, track: str) -> None:
    from torchtraceap.lab.training import train

    config = tmp_path / "config.toml"
    config.write_text(f'[trees]\ntrack = "{track}"\ntrees = 20\nleast = 5\nseeds = 2\n')
    done = train("fused", "made", tmp_path / "out", config=config, seed=3)
    assert done.weights == tmp_path / "out" / "fused.safetensors"
    assert done.figures["per_trace"] > (0.9 if track == "S" else 0.6)
    again = train("fused", "made", tmp_path / "again", config=config, seed=3)
    for name in LEARNED:
        first, second = (
            (folder / f"{name}.safetensors").read_bytes()
            for folder in (tmp_path / "out", tmp_path / "again")
        )
        assert first == second
    assert again.figures == done.figures
    assert np.isfinite(read_weights(done.weights).finite("weights", 3)).all()
    scorer = StructuralScorer(read_weights(tmp_path / "out" / "structural.safetensors"))
    (sample, *_) = made_samples("validation", 8, seed=10)
    said = scorer.figures(_core.feature_names(), sample.values, sample.zscores)
    assert np.isfinite(said.logit).all()
    assert np.allclose(said.types.sum(axis=1), 1)


@pytest.mark.usefixtures("made_dataset")
def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    from torchtraceap.errors import OptionError
    from torchtraceap.lab.training import train

    config = tmp_path / "config.toml"
    for line in ("trees = 0", 'track = "V"', "grids = 2", "time_scale = -1.0", "leafs = 3"):
        config.write_text(f"[trees]\n{line}\n")
        with pytest.raises(OptionError, match=r"\[trees\]"):
            train("structural", "made", tmp_path / "out", config=config)


def test_rare_findings_tell_more_of_a_window_than_common_ones() -> None:
    shares = np.zeros((8, 3))
    shares[:, 0] = 1.0  # everywhere: it tells nothing of one window
    shares[3, 1] = shares[5, 1] = 0.5
    shares[3, 2] = 1.0
    bits = surprisal(shares)
    assert bits[:, 0].tolist() == [0.0] * 8 and bits[0, 1:].tolist() == [0.0, 0.0]
    assert bits[3].tolist() == [0.0, 0.5 * 3.0, 1.0 * 3.0]
    assert surprisal(np.zeros((0, 3))).shape == (0, 3)
    assert np.isfinite(surprisal(np.eye(3) * 1e-12)).all()


@pytest.mark.parametrize("scorer", ["structural", "fused"])
@pytest.mark.parametrize("name", ["resnet50_num_workers_0", "resnet50_num_workers_4"])
def test_no_window_bears_a_type_that_the_rules_exclude(name: str, scorer: str) -> None:
    trace = ttap.load(ROOT / f"examples/traces/{name}.json.gz")
    windows = ttap.score(trace, scorer=scorer, windows=100)
    verdicts = trace.diagnose().verdicts
    excluded = [name for name, verdict in verdicts.items() if verdict == "absent"]
    assert excluded
    for name in excluded:
        assert not windows.types[name].any()
    for found in windows.types.values():
        assert (found <= windows.scores).all()


def test_a_window_is_of_the_finding_that_lies_in_it() -> None:
    trace = ttap.load(ROOT / "examples/traces/resnet50_num_workers_0.json.gz")
    windows = ttap.score(trace, windows=100)
    (finding,) = (f for f in trace.diagnose().findings if f.type == "single_process_data_loading")
    covered = covered_share(finding.intervals, np.array(windows.bounds_ns)) > 0.9
    assert covered.any()
    named = np.stack(list(windows.types.values())).argmax(axis=0)
    of_loader = named == list(windows.types).index("single_process_data_loading")
    assert of_loader[covered].all()
