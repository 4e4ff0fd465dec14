"""The loop, its files and processes; `v2` on windows with planted patterns."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap import cli
from torchtraceap.errors import MissingDependencyError, MissingFileError, OptionError, SchemaError
from torchtraceap.tables.windows import feature_names

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from torchtraceap.core.stored import read_toml  # noqa: E402
from torchtraceap.diagnosis.scoring.v2 import V2Scorer  # noqa: E402
from torchtraceap.diagnosis.scoring.weight_files import read_weights  # noqa: E402
from torchtraceap.lab.training import train  # noqa: E402
from torchtraceap.lab.training.figures import (  # noqa: E402
    auc,
    masked_crc,
    platt,
    window_figures,
)
from torchtraceap.lab.training.loop import (  # noqa: E402
    CHECKPOINT,
    Fitted,
    Processes,
    fit,
    step_seed,
)
from torchtraceap.lab.training.settings import LoopSettings, take  # noqa: E402
from torchtraceap.lab.training.v2 import V2Learner, V2Settings  # noqa: E402
from torchtraceap.lab.training.v2_data import Augmentation  # noqa: E402
from torchtraceap.lab.training.weak_labels import (  # noqa: E402
    LostTime,
    pseudo_targets,
    ranks,
    twin_distances,
)

EXAMPLES = Path(__file__).parents[3] / "examples"
MINI, DEMO = EXAMPLES / "mini_dataset", EXAMPLES / "traces/resnet50_num_workers_0.json.gz"
TYPES = 14
WINDOWS = 20
SMALL = {
    "grids": (WINDOWS,),
    "validated": WINDOWS,
    "tokens": 0,
    "width": 16,
    "layers": 1,
    "dropout": 0.0,
    "batch": 4,
}
UNCHANGED = Augmentation(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Window:
    """As much of a `Sample` as training reads."""

    id: str
    split: str
    label: bool
    type: str | None
    twin: str | None
    cost: Any
    positive: Any
    ignore: Any
    values: Any
    zscores: Any
    bounds_ns: Any
    tokens: Any = None


def planted(pairs: int, *, shuffled: bool = False, seed: int = 0) -> list[Window]:
    """Pairs of which the first has a few windows with a long idle time, marked as lost."""
    rng = np.random.default_rng(seed)
    samples = []
    for pair in range(pairs):
        split = "train" if pair % 4 else "validation"
        for label, twin in ((True, f"{pair}-good"), (False, None)):
            lost = np.zeros(WINDOWS, dtype=bool)
            if label:
                lost[rng.choice(WINDOWS, 4, replace=False)] = True
            values = np.zeros((WINDOWS, len(feature_names())), dtype=np.float32)
            values[:, :6] = rng.random((WINDOWS, 6))
            values[:, 3] += 3 * lost
            if shuffled:
                lost = rng.permutation(lost)
            cost = np.zeros((WINDOWS, TYPES), dtype=np.float32)
            cost[lost, 2] = 0.5
            samples.append(
                Window(
                    id=f"{pair}-{'bad' if label else 'good'}",
                    split=split,
                    label=label,
                    type="cpu_bound" if label else None,
                    twin=twin,
                    cost=cost,
                    positive=lost,
                    ignore=np.zeros(WINDOWS, dtype=bool),
                    values=values,
                    zscores=np.zeros_like(values),
                    bounds_ns=np.arange(WINDOWS + 1) * 1000,
                )
            )
    return samples


def learner_of(samples: list[Window], seed: int = 0, **changes: Any) -> V2Learner:
    settings = V2Settings(**{**SMALL, **changes})
    return V2Learner({WINDOWS: samples}, feature_names(), settings, UNCHANGED, seed)


def fitted_on(samples: list[Window], out: Path, epochs: int = 8, **changes: Any) -> Fitted:
    loop = LoopSettings(epochs=epochs, learning_rate=5e-3, patience=epochs)
    return fit(learner_of(samples, **changes), loop, out)


# ------------------------------------------------------------------------------ v2


def test_learns_what_is_planted(tmp_path: Path) -> None:
    best = fitted_on(planted(32), tmp_path).best_figures()
    assert best["bad_only"] > 0.97
    assert best["per_trace"] > 0.97


def test_shuffled_labels_teach_nothing(tmp_path: Path) -> None:
    """What is learned by heart does not hold on other traces: the mean over epochs is a guess."""
    fitted = fitted_on(planted(160, shuffled=True), tmp_path, epochs=4)
    assert abs(np.mean([each["bad_only"] for each in fitted.records]) - 0.5) < 0.06


def test_traces_alone_teach_windows(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    fitted = fitted_on(planted(32), tmp_path, track="W", positive=0.2, dropped=0.3, rounds=(2,))
    assert fitted.best_figures()["bad_only"] > 0.95


def test_twins_teach_windows(tmp_path: Path) -> None:
    """Targets are what alignment with the twin says; a trace without it says nothing."""
    samples = planted(32)
    lost = {
        each.id: LostTime.of_intervals(
            np.stack([each.bounds_ns[:-1], each.bounds_ns[:-1] + 500], axis=1)[each.positive]
        )
        for each in samples
        if each.label and each.id != "1-bad"
    }
    learner = learner_of(samples, track="W")
    learner.lost = lost
    targets = dict(
        zip([s.id for s in learner.train[WINDOWS].samples], learner._known[WINDOWS], strict=True)
    )
    assert not targets["1-bad"].weight.any()
    bad = next(each for each in samples if each.id == "2-bad")
    np.testing.assert_array_equal(targets["2-bad"].any, bad.positive)
    np.testing.assert_allclose(targets["2-bad"].severity, 0.5 * bad.positive)
    assert not targets["2-good"].any.any()
    loop = LoopSettings(epochs=8, learning_rate=5e-3, patience=8)
    assert fit(learner, loop, tmp_path).best_figures()["bad_only"] > 0.97


def test_hidden_windows_are_told_better_after_pretraining(tmp_path: Path) -> None:
    learner = learner_of(planted(32), pretrain=6)
    features = torch.from_numpy(np.stack(learner.train[WINDOWS].features))
    hidden = torch.zeros(features.shape[:2], dtype=torch.bool)
    hidden[:, ::3] = True

    def error() -> float:
        learner.module.eval()
        with torch.no_grad():
            return float(learner.module.reconstruction_error(features, hidden).mean())

    before = error()
    loop = LoopSettings(epochs=6, learning_rate=5e-3, patience=6)
    fitted = fit(learner, loop, tmp_path)
    assert fitted.records[-1]["loss"] < fitted.records[0]["loss"]
    assert error() < before
    learner.save(tmp_path / "weights.safetensors", fitted)
    arrays = read_weights(tmp_path / "weights.safetensors").arrays
    assert not any(name.startswith("pretraining") for name in arrays)


def test_nothing_but_windows(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    fitted = fitted_on(planted(32), tmp_path, track="Z", positive=0.1, dropped=0.2, rounds=())
    assert fitted.best_figures()["bad_only"] > 0.8


def test_saved_weights_hold_what_scoring_needs(tmp_path: Path) -> None:
    learner = learner_of(planted(16))
    fitted = fit(learner, LoopSettings(epochs=1), tmp_path)
    learner.save(tmp_path / "weights.safetensors", fitted)
    weights = read_weights(tmp_path / "weights.safetensors")
    assert weights.arrays.keys() == {*learner.module.state_dict(), "calibration"}
    assert weights.texts("features") == feature_names()
    assert weights.array("calibration", np.float64)[0] > 0


@pytest.mark.slow  # trains networks or trees
def test_a_data_set_becomes_weights_that_score(tmp_path: Path) -> None:
    """From the command line, with events; what was trained is not trained over."""
    pytest.importorskip("pyarrow")
    shutil.copytree(MINI, tmp_path / "set", ignore=shutil.ignore_patterns(".cache"))
    config, out = tmp_path / "settings.toml", tmp_path / "out"
    config.write_text(
        "[loop]\nepochs = 2\n[v2]\ngrids = [50]\nvalidated = 50\nwidth = 16\nheads = 2\n"
        "layers = 1\ntokens = 8\ntoken_width = 8\nnames = false\nrelative = true\npretrain = 1\n"
        "events = 1.0\nbetween = true\n"
    )
    words = ["train", "v2", str(tmp_path / "set"), str(out), "--config", str(config)]
    assert cli.main(words) == 0
    assert cli.main(words) == 2
    assert cli.main([*words, "--resume"]) == 0
    weights = read_weights(out / "weights.safetensors")
    try:
        scorer = V2Scorer(weights)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    scores = scorer.score(ttap.load(DEMO), 50).scores
    assert ((scores >= 0) & (scores <= 1)).all()
    assert scorer.has_events


# ------------------------------------------------------------------------------ the loop


@dataclass
class Line:
    """Learns the slope of a line; dropout and noise show what depends on draws."""

    processes: Processes = field(default_factory=Processes)
    rows: int = 8
    stop_after: int | None = None
    calls: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.module = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(0.2))
        self.x = torch.linspace(-1, 1, self.rows)[:, None]

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"rows": self.rows}

    def begin(self, epoch: int) -> None:
        self.order = np.random.default_rng(step_seed(3, epoch)).permutation(self.rows)

    def steps(self, epoch: int) -> int:
        return 4

    def loss(self, epoch: int, step: int) -> tuple[Any, float]:
        self.calls += 1
        if self.stop_after is not None and self.calls > self.stop_after:
            raise KeyboardInterrupt
        rows = self.processes.share(list(self.order[step * 2 : step * 2 + 2]))
        said = self.module(self.x[rows])
        return (said - 3 * self.x[rows]).square().sum(), float(len(rows))

    def validate(self) -> dict[str, float]:
        return {"fit": -float((self.module(self.x) - 3 * self.x).square().mean())}

    def state(self) -> dict[str, Any]:
        return {"calls": torch.tensor(self.calls)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.calls = int(state["calls"])


SETTINGS = LoopSettings(epochs=6, learning_rate=0.05, patience=6, checkpoint_s=1e-9)


@pytest.mark.parametrize("steps", [1, 4, 5, 13])
def test_a_break_changes_nothing(tmp_path: Path, steps: int) -> None:
    whole, broken = Line(), Line(stop_after=steps)
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    expected = fit(whole, SETTINGS, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit(broken, SETTINGS, tmp_path / "broken")
    resumed = Line()
    found = fit(resumed, SETTINGS, tmp_path / "broken", resume=True)
    for name, value in whole.module.state_dict().items():
        assert torch.equal(value, resumed.module.state_dict()[name])
    assert [each["fit"] for each in found.records] == [each["fit"] for each in expected.records]
    assert [each["loss"] for each in found.records] == [each["loss"] for each in expected.records]
    assert resumed.calls == whole.calls


def test_a_break_changes_no_pseudo_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    samples, changes = planted(16), {"track": "W", "rounds": (1, 2), "dropout": 0.1}
    loop = LoopSettings(epochs=3)
    whole = learner_of(samples, **changes)
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    fit(whole, loop, tmp_path / "whole")
    # A second passes whenever somebody looks, so that each call has time for a step or two.
    clock = SimpleNamespace(monotonic=count().__next__, time=time.time)
    monkeypatch.setattr("torchtraceap.lab.training.loop.time", clock)
    for _ in range(100):
        parts = learner_of(samples, **changes)
        found = fit(parts, loop, tmp_path / "parts", resume=True, minutes=3.5 / 60)
        if found.finished:
            break
    assert found.finished
    for name, value in whole.module.state_dict().items():
        assert torch.equal(value, parts.module.state_dict()[name])


def test_time_that_is_up_leaves_a_checkpoint(tmp_path: Path) -> None:
    found = fit(Line(), SETTINGS, tmp_path, minutes=1e-9)
    assert not found.finished
    assert (tmp_path / CHECKPOINT).exists()
    assert fit(Line(), SETTINGS, tmp_path, resume=True).finished


def test_ends_where_validation_gets_no_better(tmp_path: Path) -> None:
    class Worse(Line):
        def validate(self) -> dict[str, float]:
            return {"fit": -float(self.calls)}

    found = fit(Worse(), LoopSettings(epochs=50, patience=3), tmp_path)
    assert (found.epoch, found.best_epoch) == (4, 0)


def test_checkpoints_are_not_overwritten_or_mixed_up(tmp_path: Path) -> None:
    fit(Line(), SETTINGS, tmp_path)
    with pytest.raises(OptionError, match="holds a checkpoint"):
        fit(Line(), SETTINGS, tmp_path)
    with pytest.raises(SchemaError, match="other settings"):
        fit(Line(rows=9), SETTINGS, tmp_path, resume=True)
    (tmp_path / CHECKPOINT).write_bytes(b"nothing")
    with pytest.raises(SchemaError, match="can't be read"):
        fit(Line(), SETTINGS, tmp_path, resume=True)


GROUP = """
import sys
sys.path.insert(0, sys.argv[1])
from test_training import *
from torchtraceap.lab.training.loop import join_processes
with join_processes() as group:
    line = Line(group)
    line.module[1].p = 0.0
    fit(line, LoopSettings(epochs=3, learning_rate=0.05), sys.argv[2], processes=group)
    if group.is_first:
        print(json.dumps([value.tolist() for value in line.module.state_dict().values()]))
"""


@pytest.mark.slow  # starts processes that import torch
def test_two_processes_equal_one(tmp_path: Path) -> None:
    """Through gloo, on shares of uneven weight: of the last batch one has nothing."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one = Line(rows=7)
    one.module[1].p = 0.0
    script = GROUP.replace("Line(group)", "Line(group, rows=7)")
    fit(one, LoopSettings(epochs=3, learning_rate=0.05), tmp_path / "one")
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(Path(__file__).parent), str(tmp_path / "two")],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(29500 + os.getpid() % 2000),
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    answers = [process.communicate(timeout=240)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    for value, expected in zip(
        json.loads(answers[0].splitlines()[-1]), one.module.state_dict().values(), strict=True
    ):
        assert np.allclose(value, expected.numpy(), atol=1e-6)


def test_logs_are_read_by_others(tmp_path: Path) -> None:
    found = fit(Line(), SETTINGS, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == found.records
    data = (tmp_path / "events.out.tfevents.0").read_bytes()
    records = list(records_of(data))
    assert len(records) == 1 + len(lines)
    assert b"brain.Event:2" in records[0]
    assert b"fit" in records[-1]


def records_of(data: bytes) -> Any:
    """Payloads of an event file."""
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield data[12 : 12 + length]
        data = data[16 + length :]


def test_event_files_have_the_published_check_sums() -> None:
    """CRC-32C of "123456789" is 0xE3069283 (RFC 3720's polynomial)."""
    crc = 0xE3069283
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert masked_crc(b"123456789") == struct.pack("<I", masked)


# ------------------------------------------------------------------------------ settings, figures


def test_settings_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("[loop]\nepochs = 3\n[v2]\ngrids = [50, 100]\ntokens = 0\n")
    tables = read_toml(path)
    assert take(LoopSettings, tables, "loop").epochs == 3
    assert take(V2Settings, tables, "v2").grids == (50, 100)
    assert take(Augmentation, tables, "augmentation") == Augmentation()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[loop]\nepoch = 3\n", "no setting 'epoch'"),
        ("[loop]\nepochs = true\n", "is no"),
        ("[loop]\nepochs = 0\n", "make no sense"),
        ("[loop]\nepochs = 1.5\n", "is no"),
        ("loop = 3\n", "a table"),
        ("[loop\n", "is no TOML"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(OptionError, match=said):
        take(LoopSettings, read_toml(path), "loop")


def test_unknown_scorers_files_and_data_sets(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="did you mean 'v2'"):
        train("v22", tmp_path, tmp_path / "out")
    with pytest.raises(MissingFileError):
        train("v2", tmp_path, tmp_path / "out", config=tmp_path / "none.toml")
    with pytest.raises(MissingFileError):
        train("v2", tmp_path / "none", tmp_path / "out")


def test_areas_under_the_curve() -> None:
    positive = np.array([True, True, False, False])
    assert auc(positive, np.array([4.0, 3.0, 2.0, 1.0])) == 1.0
    assert auc(positive, np.array([1.0, 1.0, 1.0, 1.0])) == 0.5
    assert auc(positive, np.array([2.0, 0.0, 1.0, 0.0])) == 0.625
    found = window_figures(
        [np.array([1.0, 0.0]), np.array([2.0, 3.0])],
        [
            SimpleNamespace(positive=np.array([True, False]), ignore=np.array([False, False])),
            SimpleNamespace(positive=np.array([False, False]), ignore=np.array([False, True])),
        ],
    )
    assert found == {"bad_only": 1.0, "pooled": 0.5, "per_trace": 1.0}


def test_calibrated_logits_are_probabilities() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=20_000)
    positive = rng.random(20_000) < 1 / (1 + np.exp(-(2 * logits - 1)))
    scale, shift = platt(logits, positive)
    assert (scale, shift) == (pytest.approx(2, abs=0.1), pytest.approx(-1, abs=0.1))
    assert np.isfinite(platt(np.array([-1.0, 1.0]), np.array([False, True]))).all()
    assert platt(np.zeros(3), np.zeros(3, dtype=bool)) == (1.0, 0.0)


def test_windows_unlike_the_twin_are_far() -> None:
    rng = np.random.default_rng(0)
    good = rng.random((30, 4))
    bad = good[::-1].copy()
    bad[7] += 2
    far = twin_distances([bad, good], {0: 1})
    assert list(far) == [0]
    assert far[0].argmax() == 7


def test_pseudo_labels_leave_out_what_is_in_doubt() -> None:
    scores = [np.arange(50.0), np.arange(50.0, 100.0)]
    targets, weights = pseudo_targets(scores, 0.1, 0.3)
    assert targets[0].sum() == 0
    assert targets[1].sum() == 10
    assert weights[1].sum() == 30
    assert [each.tolist() for each in ranks([np.array([5.0]), np.array([1.0, 5.0])])] == [
        [1.0],
        [0.0, 1.0],
    ]
