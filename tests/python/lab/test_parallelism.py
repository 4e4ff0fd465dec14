"""Which way to split a training job is chosen: memory, refusals, times, options, the command."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.errors import OptionError
from torchtraceap.lab.jobs import Machine, TrainingJob, calibrate, job_memory
from torchtraceap.lab.jobs.composition import published_jobs
from torchtraceap.lab.jobs.jobs import Cluster, Transformer
from torchtraceap.lab.jobs.parallelism import choose_parallelism, job_fit
from torchtraceap.lab.jobs.terms import COEFFICIENTS, Terms, step_parts
from torchtraceap.ops import device_named

GPT = {"layers": 24, "hidden": 2048, "heads": 16, "sequence": 2048}
A100S = {"device": "A100 SXM 80GB", "gpus": 64}


def all_reduce_ns(size: float, ranks: int) -> float:
    """20 us and 200 GB/s of bus bandwidth."""
    return 20_000 + size * 2 * (ranks - 1) / ranks / 200


MACHINE = Machine(3e14, 2e12, all_reduce_ns)


def megatron(hidden: int, heads: int, layers: int, stages: int, chunks: int) -> TrainingJob:
    return TrainingJob(
        stages * 3, 1, hidden, layers, 2048, 8, 1, stages, heads=heads, chunks=chunks
    )


@pytest.mark.parametrize(
    ("job", "whole", "selective"),
    [  # GiB of activations: Korthikanti et al. (2022), figure 1
        (replace(megatron(6144, 64, 48, 1, 1), global_batch=4, micro_batch=4), 59.25, 9.5625),
        (megatron(12288, 96, 96, 8, 3), 66.84375, 12.3515625),
        (megatron(20480, 128, 105, 35, 3), 114.0234375, 23.076171875),
        (megatron(25600, 160, 128, 64, 1), 131.25, 26.5625),
    ],
)
def test_activations_are_those_of_the_paper(
    job: TrainingJob, whole: float, selective: float
) -> None:
    one = replace(job, vocabulary=1)
    assert job_memory(one).activations / 2**30 == pytest.approx(whole, rel=1e-3)
    saving = replace(one, recompute="selective", sequence_parallel=True)
    at_work = job_memory(saving).activations / 2**30 - selective
    # What is computed again of one layer comes on top; the paper leaves it out.
    assert 0 < at_work < 0.2 * selective


def test_zero_divides_what_its_stage_says() -> None:
    job = TrainingJob(64, 1, 2048, 24, 2048, 1, 8, 1)
    memory = [job_memory(replace(job, zero=stage)) for stage in range(4)]
    assert memory[1].optimizer == memory[0].optimizer / 8
    assert memory[1].gradients == memory[0].gradients
    assert memory[2].gradients == memory[0].gradients / 8
    assert memory[2].parameters == memory[0].parameters
    assert memory[3].parameters == memory[0].parameters / 8


def test_an_all_reduce_of_nodes_shares_the_network() -> None:
    size = 1e9
    inside, nothing = MACHINE.all_reduces(size, 8, 8)
    assert (inside, nothing) == (all_reduce_ns(size, 8), 0.0)
    # One rank of each of four nodes has an eighth of 100 GB/s: 2 x 3/4 of the bytes, six rounds.
    none_inside, between = MACHINE.all_reduces(size, 4, 1)
    assert none_inside == 0.0
    assert between == pytest.approx(1e9 * 1.5 * size / 12.5e9 + 6 * MACHINE.node_latency_ns)
    assert MACHINE.all_reduces(size, 32, 8)[1] < between / 7


def test_slopes_are_those_of_the_times() -> None:
    jobs = [
        TrainingJob(64, 2, 2048, 24, 1024, 2, 2, 2, recompute="full"),
        TrainingJob(64, 1, 1024, 12, 1024, 1, 16, 1, zero=3),
        TrainingJob(64, 4, 4096, 24, 2048, 8, 2, 4, sequence_parallel=True),
    ]
    terms = Terms.of(jobs, MACHINE)
    mean = published_jobs().coefficients.mean
    parts = step_parts(mean, terms)
    assert (parts.total > 0).all()
    for place in range(len(COEFFICIENTS)):
        moved = mean.copy()
        moved[place] += 1e-6
        change = np.log(step_parts(moved, terms).total / parts.total) / 1e-6
        assert parts.slopes[:, place] == pytest.approx(change, abs=1e-4)


def test_small_layers_take_as_long_as_their_host() -> None:
    """However narrow: tensor parallelism makes no layer faster that the host already bounds."""
    jobs = [TrainingJob(8, 1, 512, 12, 512, tensor, 1, 1, heads=8) for tensor in (2, 4, 8)]
    parts = step_parts(published_jobs().coefficients.mean, Terms.of(jobs, MACHINE))
    assert (parts.host_share > 0.9).all()
    assert parts.layers == pytest.approx(np.full(3, parts.layers[0]), rel=0.02)


def test_strategies_are_ranked_and_fit() -> None:
    found = choose_parallelism(GPT, A100S, global_batch=512)
    times = [strategy.step_ns for strategy in found.strategies]
    assert len(times) > 50 and times == sorted(times)
    assert found.best is found.strategies[0]
    for strategy in found.strategies:
        assert strategy.job.gpus == 64
        assert strategy.low_ns < strategy.step_ns < strategy.high_ns
        fit = job_fit(strategy.job, device_named("A100 SXM 80GB"))
        assert fit is not None and fit.fits
        assert strategy.memory.total < fit.needed <= fit.capacity < 80 * 2**30
        assert 0 < strategy.utilization < 1
        assert not strategy.unmeasured


def test_every_split_is_ranked_or_refused() -> None:
    found = choose_parallelism(GPT, A100S, global_batch=512)
    ranked = {(one.job.tensor, one.job.data, one.job.pipeline) for one in found.strategies}
    refused = {(one.tensor, one.data, one.pipeline): one.reason for one in found.refused}
    splits = {
        (t, 64 // t // p, p)
        for t in (1, 2, 4, 8, 16, 32, 64)
        for p in (1, 2, 4, 8, 16, 32, 64)
        if t * p <= 64
    }
    assert ranked | set(refused) == splits
    assert "layers can't be divided among 16 stages" in refused[1, 4, 16]
    assert "heads can't be divided among 32" in refused[32, 2, 1]


def test_what_does_not_fit_is_refused_with_what_it_needs() -> None:
    large = {"layers": 96, "hidden": 12288, "heads": 96, "sequence": 2048}
    found = choose_parallelism(large, {"device": "A100 SXM 80GB", "gpus": 8}, global_batch=8)
    assert not found.strategies
    assert all("GB of memory" in one.reason for one in found.refused)
    with pytest.raises(OptionError, match="no strategy is possible: needs at least"):
        _ = found.best


def test_memory_is_saved_where_it_is_short() -> None:
    large = {"layers": 96, "hidden": 12288, "heads": 96, "sequence": 2048}
    found = choose_parallelism(large, {**A100S, "gpus": 512}, global_batch=1536)
    assert found.best.job.recompute == "selective"
    assert found.best.job.tensor in (4, 8)
    # Whole activations of 175 billion parameters fit into 64 GPUs only if a layer spans nodes.
    fewer = choose_parallelism(large, {**A100S, "gpus": 64}, global_batch=64, recompute=("none",))
    assert all(strategy.job.tensor > 8 for strategy in fewer.strategies)


def test_a_slow_network_moves_the_choice_into_nodes() -> None:
    large = {"layers": 48, "hidden": 8192, "heads": 64, "sequence": 2048}

    def best(rate: float) -> TrainingJob:
        cluster = {**A100S, "gpus": 64, "node_bandwidth": rate}
        return choose_parallelism(large, cluster, global_batch=512).best.job

    # Fewer replicas exchange gradients, or less of them, where the network is slow.
    fast, slow = best(400e9), best(1e9)
    assert slow.pipeline * slow.tensor >= fast.pipeline * fast.tensor
    assert slow != fast


def test_the_fastest_of_a_known_machine_is_found() -> None:
    """Measured on a few of its jobs, all others are ranked as that machine would have them."""
    truth = published_jobs().coefficients.mean + 0.3
    cluster = Cluster("A100 SXM 80GB", 16)
    machine = Machine.of("A100 SXM 80GB")
    every = choose_parallelism(GPT, cluster, global_batch=64)
    jobs = [strategy.job for strategy in every.strategies]
    times = step_parts(truth, Terms.of(jobs, machine)).total
    own = calibrate(machine, jobs[::3], times[::3])
    found = choose_parallelism(GPT, cluster, global_batch=64, measured=own)
    ranked = [strategy.job for strategy in found.strategies]
    true = step_parts(truth, Terms.of(ranked, machine)).total
    assert true[0] <= 1.01 * true.min()
    errors = np.array([one.step_ns for one in found.strategies]) / true - 1
    assert np.abs(errors).mean() < 0.05
    assert any(one.unmeasured for one in found.strategies)
    assert any(not one.unmeasured for one in found.strategies)


def test_what_was_not_measured_is_said() -> None:
    llama = SimpleNamespace(
        num_hidden_layers=32,
        hidden_size=4096,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        vocab_size=128256,
        max_position_embeddings=8192,
        hidden_act="silu",
    )
    sizes = Transformer.of(llama)
    assert sizes.gated and sizes.feed_forward == 14336
    parameters = (
        32
        * TrainingJob(
            1, 1, 4096, 32, 8192, 1, 1, 1, 128256, 32, 8, feed_forward=14336, gated=True
        ).layer_parameters
    )
    assert parameters + 2 * 128256 * 4096 == pytest.approx(8.03e9, rel=1e-3)
    found = choose_parallelism(
        llama, Cluster("H100 SXM", 16), global_batch=64, flash_attention=True, zero=(0, 1, 3)
    )
    said = " ".join(found.best.unmeasured)
    for part in ("H100", "sequence 8,192", "flash attention", "gated"):
        assert part in said
    # Another GPU makes the interval wider.
    near = choose_parallelism(GPT, A100S, global_batch=512).best
    assert found.best.high_ns / found.best.step_ns > near.high_ns / near.step_ns


def test_ranks_whose_links_nobody_measured_are_refused() -> None:
    rack = {"device": "GB200", "gpus": 64, "gpus_per_node": 64}
    found = choose_parallelism(GPT, rack, global_batch=64)
    assert any("was not measured" in one.reason for one in found.refused)
    assert all(one.job.tensor <= 8 and one.job.data <= 8 for one in found.strategies)


def test_heads_may_be_wider_than_the_model() -> None:
    """Qwen3-0.6B: 16 heads of 128 in a model of 1,024; 0.44 billion parameters of layers."""
    config = {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "vocab_size": 151936,
    }
    found = choose_parallelism(config, {**A100S, "gpus": 8}, global_batch=64)
    assert 28 * found.best.job.layer_parameters == pytest.approx(0.44e9, rel=0.01)
    assert Transformer.of(
        {**config, "model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh"}
    ).gated


@pytest.mark.parametrize(
    ("model", "cluster", "batch", "said"),
    [
        ({**GPT, "heads": 15}, A100S, 512, "can't be divided among 15 heads"),
        ({**GPT, "layers": 0}, A100S, 512, "layers is a whole number"),
        ({**GPT, "hidden": 2048.5}, A100S, 512, "hidden is a whole number"),
        ({"layers": 2}, A100S, 512, "does not say its hidden"),
        ({**GPT, "num_local_experts": 8}, A100S, 512, "experts"),
        (GPT, {"gpus": 8}, 512, "device and gpus are needed"),
        (GPT, {**A100S, "gpus": 12}, 512, "don't fill nodes"),
        (GPT, {**A100S, "gpus": 10**9}, 512, "at most"),
        (GPT, {**A100S, "device": "Abacus"}, 512, "Abacus"),
        (GPT, {**A100S, "node_bandwidth": 0}, 512, "network"),
        (GPT, {**A100S, "node_bandwidth": "fast"}, 512, "network"),
        ({**GPT, "hidden": float("inf")}, A100S, 512, "hidden is a whole number"),
        (GPT, A100S, 0, "global_batch"),
    ],
)
def test_bad_input_gets_words(model: object, cluster: object, batch: int, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        choose_parallelism(model, cluster, global_batch=batch)  # type: ignore[arg-type]


def test_options_outside_their_lists_get_words() -> None:
    for wrong in ({"zero": 1}, {"zero": (4,)}, {"recompute": "full"}, {"recompute": ()}):
        with pytest.raises(OptionError, match="is a list of"):
            choose_parallelism(GPT, A100S, global_batch=512, **wrong)
    with pytest.raises(OptionError, match="micro-batch"):
        choose_parallelism(GPT, A100S, global_batch=512, micro_batches=(0,))


def test_it_shows_itself_and_is_json() -> None:
    found = ttap.choose_parallelism(GPT, A100S, global_batch=512)
    document = found.to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["schema"] == "torchtraceap.parallelism/1"
    memory = document["strategies"][0]["memory_bytes"]
    assert memory["total"] == sum(value for key, value in memory.items() if key != "total")
    text = str(found)
    assert "64 x A100" in text and "Refused" in text and "8 of 10" in text


COMMAND = "parallelism --layers 24 --hidden 2048 --heads 16 --sequence 2048 --gpus 64 --batch 512"


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*COMMAND.split(), "--device", "A100 SXM 80GB"]
    assert main([*arguments, "--limit", "3"]) == 0
    assert "and 1" in capsys.readouterr().out
    assert main([*arguments, "--json", "--micro-batch", "2,4"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {one["micro_batch"] for one in document["strategies"]} == {2, 4}


def test_the_command_reads_a_configuration(
    tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    from pathlib import Path

    file = Path(str(tmp_path)) / "config.json"
    file.write_text(json.dumps({"n_layer": 12, "n_embd": 768, "n_head": 12, "n_ctx": 1024}))
    arguments = ["--gpus", "4", "--batch", "64", "--device", "A100 SXM 80GB", "--json"]
    assert main(["parallelism", "--config", str(file), *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["hidden"] == 768
    file.write_text("[")
    assert main(["parallelism", "--config", str(file), *arguments]) == 2
    assert "is no JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more", [[], ["--device", "A100"], ["--device", "H100 SXM", "--recompute", "all"]]
)
def test_the_command_refuses_in_words(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND.split(), *more]) == 2
    printed = capsys.readouterr()
    assert (
        not printed.out
        and printed.err.startswith("torchtraceap: ")
        and "Traceback" not in printed.err
    )


def test_without_any_way_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "parallelism --layers 96 --hidden 12288 --heads 96 --sequence 2048 --gpus 1"
    code = main([*arguments.split(), "--batch", "8", "--device", "A100 SXM 80GB"])
    assert code == 2
    assert "no strategy is possible" in capsys.readouterr().out
