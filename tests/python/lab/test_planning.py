"""Which GPUs a run takes: memory verdicts, prices, the frontier, captures, the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.errors import OptionError
from torchtraceap.lab.jobs.jobs import TrainingJob
from torchtraceap.lab.jobs.parallelism import job_fit
from torchtraceap.lab.memory import fit_memory
from torchtraceap.ops import Device, device_named

GPT = {"layers": 24, "hidden": 2048, "heads": 16, "sequence": 2048}
LARGE = {"layers": 80, "hidden": 8192, "heads": 64, "sequence": 4096}
PRICES = {"H100 SXM": 2.5, "A100 SXM 80GB": 1.6}
GIB = 2**30


def planned(**options: Any) -> ttap.TrainingPlan:
    given: dict[str, Any] = {"devices": PRICES, "gpus": [8, 16], "tokens": 2e11, "batch": 512}
    return ttap.plan(GPT, **{**given, **options})


@pytest.fixture(scope="module")
def found() -> ttap.TrainingPlan:
    return planned()


def test_time_and_price_follow_from_the_step(found: ttap.TrainingPlan) -> None:
    names = {device_named(name).name: price for name, price in PRICES.items()}
    assert {each.device for each in found.options} == set(names)
    assert {each.gpus for each in found.options} == {8, 16}
    for each in found.options:
        assert each.batch == 512
        assert (each.steps - 1) * 512 * 2048 < 2e11 <= each.steps * 512 * 2048
        assert each.run_seconds == pytest.approx(each.steps * each.step.predicted_ns / 1e9)
        hours = each.gpus * each.run_seconds / 3600
        assert each.price == pytest.approx(names[each.device] * hours)
        assert each.tokens_per_second == pytest.approx(
            512 * 2048 * 1e9 / each.step.predicted_ns, rel=1e-6
        )
        assert each.step.low_ns < each.step.predicted_ns < each.step.high_ns
        assert each.memory_fit is not None and each.memory_fit.fits
        assert each.largest_micro_batch is not None
        assert each.largest_micro_batch >= each.micro_batch


def test_the_cheapest_comes_first_or_the_fastest(found: ttap.TrainingPlan) -> None:
    prices = [each.price for each in found.options]
    assert prices == sorted(prices)  # type: ignore[type-var]
    assert found.best is found.options[0]
    times = [each.run_seconds for each in planned(sort="time").options]
    assert times == sorted(times)
    assert planned(devices=list(PRICES)).sorted_by == "time"


def test_the_frontier_holds_what_nothing_beats_in_both(found: ttap.TrainingPlan) -> None:
    for each in found.options:
        assert each.price is not None
        beaten = any(
            other.run_seconds <= each.run_seconds and other.price < each.price  # type: ignore[operator]
            for other in found.options
        )
        assert each.on_frontier is not beaten


def test_the_price_at_which_another_gpu_is_better_is_told(found: ttap.TrainingPlan) -> None:
    other = next(each for each in found.options if each.device != found.best.device)
    own = {device_named(name).name: name for name in PRICES}
    limit = PRICES[own[found.best.device]] * other.price / found.best.price  # type: ignore[operator]
    assert any(f"less than {limit:,.2f}" in said for said in found.would_change)
    dear = planned(devices={**PRICES, own[found.best.device]: limit * 1.01})
    assert dear.best.device == other.device


def test_what_is_too_large_says_by_how_much_and_what_helps() -> None:
    found = planned(devices={"H100 SXM": 2.5}, gpus=[8]).too_large
    assert not found  # 1.3 billion parameters fit
    (large,) = ttap.plan(LARGE, devices=["H100 SXM"], gpus=[64], samples=1e6, batch=512).too_large
    fit = large.memory_fit
    assert not fit.fits and fit.free == fit.capacity - fit.needed < 0
    parts = large.memory.to_dict()
    assert sum(parts.values()) == pytest.approx(fit.tensors, abs=8)
    assert f"does not fit by {-fit.free / GIB:.1f} GiB" in fit.verdict
    assert large.fits_with
    plain = TrainingJob(
        64, 1, 8192, 80, 4096, 1, 64, 1, heads=64, flash_attention=True
    )  # fmt: skip
    chip = device_named("H100 SXM")
    helps = {
        "ZeRO stage 3": replace(plain, zero=3),
        "8-way tensor parallelism": replace(plain, tensor=8, data=8),
        "full recomputation": replace(plain, recompute="full"),
    }
    for name, job in helps.items():
        own = job_fit(job, chip)
        assert own is not None
        assert own.fits is (name in large.fits_with)


def test_nothing_is_possible_is_said() -> None:
    found = ttap.plan(LARGE, devices=["L4"], gpus=[1], tokens=1e9, batch=8)
    assert not found.options and found.too_large
    with pytest.raises(OptionError, match="does not fit by"):
        _ = found.best


def test_more_than_there_is_never_fits() -> None:
    """82 GiB of tensors on a card of 80 GB."""
    chip = device_named("H100 SXM")
    fit = fit_memory(82 * GIB, 70 * GIB, chip)
    assert fit is not None and not fit.fits and fit.capacity < 80 * GIB
    small = fit_memory(60 * GIB, 40 * GIB, chip)
    assert small is not None and small.fits
    assert fit_memory(GIB, 0, Device("own", 1e12)) is None  # nobody knows its memory
    own = fit_memory(GIB, 0, Device("own", 1e12, memory_bytes=4 * GIB))
    assert own is not None and own.capacity == 4 * GIB


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tokens": None}, "how long the run is"),
        ({"samples": 1e6}, "how long the run is"),
        ({"tokens": -1.0}, "tokens: a number above 0"),
        ({"tokens": float("nan")}, "tokens: a number above 0"),
        ({"batch": None}, "sizes need a batch"),
        ({"gpus": [0]}, "gpus is a whole number"),
        ({"gpus": []}, "devices times numbers"),
        ({"devices": []}, "devices times numbers"),
        ({"devices": "H100 SXM"}, "a list of GPUs"),
        ({"devices": {"H100 SXM": 0}}, "price of H100"),
        ({"devices": ["Abacus"]}, "Abacus"),
        ({"strategies": ["ddp"]}, "splits of sizes are searched"),
        ({"sort": "beauty"}, "sort is"),
        ({"sort": "price", "devices": ["H100 SXM"]}, "H100 SXM5 80 GB has none"),
        ({"devices": {"H100 SXM": 2.5, "B200": None}}, "B200 180 GB has none"),
    ],
)
def test_bad_input_gets_words(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        planned(**options)


def test_numbers_of_gpus_that_fill_no_nodes_are_refused_alone() -> None:
    found = planned(gpus=[8, 12])
    assert {each.gpus for each in found.options} == {8}
    assert {each.gpus for each in found.refused} == {12}
    assert "fill nodes" in found.refused[0].reason


def test_it_shows_itself_and_is_json(found: ttap.TrainingPlan) -> None:
    document = found.to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["schema"] == "torchtraceap.plan/1" and document["coverage"] == 0.8
    text = str(found)
    assert "8 of 10 between" in text and "GiB free" in text and "price of the run" in text


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"n_layer": 24, "n_embd": 2048, "n_head": 16, "n_ctx": 2048}))
    told = ["--device", "H100 SXM=2.5", "--gpus", "8", "--tokens", "0.2T", "--batch", "512"]
    for source in ([str(file)], ["--config", str(file)]):
        assert main(["plan", *source, *told, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["tokens"] == 2e11
        assert document["options"][0]["price"] > 0
    assert main(["plan", "--config", str(file), *told, "--limit", "1"]) == 0
    assert "and 2 more" in capsys.readouterr().out
    for wrong in (["plan", *told], ["plan", str(file), "--config", str(file), *told],
                  ["plan", str(file), "--device", "H100 SXM=cheap", "--tokens", "1T"],
                  ["plan", str(file), "--device", "H100 SXM", "--tokens", "many"]):  # fmt: skip
        assert main(wrong) == 2
        assert capsys.readouterr().err.startswith("torchtraceap: ")


# ------------------------------------------------------------------------------- captured


def trained(batch: int = 256) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    layers = [torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024)]
    return {
        "model": torch.nn.Sequential(*layers),
        "inputs": (torch.randn(batch, 1024),),
        "loss": lambda out: out.square().mean(),
        "optimizer": torch.optim.AdamW,
    }


def test_a_workload_is_captured_once_whatever_the_devices() -> None:
    made = []

    def workload() -> dict[str, Any]:
        made.append(1)
        return trained()

    ttap.plan(workload, devices=["H100 SXM"], samples=1e6)
    alone = len(made)
    made.clear()
    found = ttap.plan(workload, devices=["H100 SXM", "A100 SXM 80GB", "L4", "MI300X"], samples=1e6)
    assert len(made) == alone
    assert len(found.options) == 4


def test_its_steps_are_those_of_a_prediction_that_nobody_records() -> None:
    found = ttap.plan(trained, devices=["H100 SXM"], gpus=[1, 2], samples=1e6, strategies=["ddp"])
    by_gpus = {each.gpus: each for each in found.options}
    for gpus, way in ((1, None), (2, "ddp")):
        expected = ttap.predict(trained, device="H100 SXM", world_size=gpus, strategy=way)
        option = by_gpus[gpus]
        assert option.step == expected.unprofiled
        assert option.memory_fit == expected.memory_fit
        assert option.batch == 256 * gpus
        assert expected.unprofiled.predicted_ns < expected.step.predicted_ns  # the host decides
    (plain,) = (each for each in found.options if each.gpus == 1)
    flops = 6 * 256 * 1024 * 1024 * 2 - 2 * 256 * 1024 * 1024  # no gradient of the inputs
    rate = device_named("H100 SXM").vector["fp32"]
    assert plain.utilization == pytest.approx(
        1e9 * flops / rate / plain.step.predicted_ns, rel=0.01
    )
    with pytest.raises(OptionError, match="give samples"):
        ttap.plan(trained, devices=["H100 SXM"], tokens=1e6)


def test_the_largest_batch_is_the_last_that_fits() -> None:
    chip = replace(device_named("H100 SXM"), id="", name="own", memory_bytes=GIB + 400 * 10**6)
    (option,) = ttap.plan(trained, devices=[chip], samples=1e6).options
    largest = option.largest_micro_batch
    assert largest is not None and largest > 1000

    def fits(batch: int) -> bool:
        found = ttap.predict(trained, device=chip, batch=batch).memory_fit
        assert found is not None
        return found.fits

    assert fits(round(0.99 * largest)) and not fits(round(1.01 * largest))
    found = ttap.plan(trained, devices=[chip], samples=1e6, batch=2 * largest)
    assert not found.options
    (large,) = found.too_large
    (said,) = large.fits_with
    assert int(said.split()[3]) == pytest.approx(largest, rel=0.01)


def test_a_type_that_a_gpu_lacks_is_refused() -> None:
    found = ttap.plan(trained, devices=["T4", "L4"], samples=1e6, dtype="bf16")
    assert [each.device for each in found.options] == ["L4"]
    assert "no units for bf16" in found.refused[0].reason
    with pytest.raises(OptionError, match="no units for bf16"):
        ttap.predict(trained, device="T4", dtype="bf16")
    assert ttap.predict(trained, device="T4", dtype="fp16").step.predicted_ns > 0
