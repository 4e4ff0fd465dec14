"""Collectives of one rank among others that are not there."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import torchtraceap as ttap
from torchtraceap.errors import OptionError
from torchtraceap.lab.collection.emulated import NETWORKS, Network, TransferTimes
from torchtraceap.record.export import DESCRIPTION, as_nccl_records

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch without torch.distributed", allow_module_level=True)

from torch import distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from torchtraceap.lab.collection.emulated import FORMS, process_group  # noqa: E402
from torchtraceap.lab.collection.emulated.transfers import build_kernels  # noqa: E402
from torchtraceap.ops.durations.inputs import collective_kernel  # noqa: E402
from torchtraceap.record.notices import RecordingError  # noqa: E402

RANKS = 4
QUICK = Network(device="h100_sxm", late_share=0.0)
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture
def group() -> Iterator[Any]:
    with process_group(RANKS, QUICK) as found:
        yield found


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Sequential(nn.ReLU(), nn.Linear(32, 8)))


def inputs() -> Any:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(1))


def local_gradients() -> list[Any]:
    model = small_model()
    model(inputs()).sum().backward()
    return [each.grad for each in model.parameters()]


def recorded(run: Callable[[], object], **options: Any) -> list[dict[str, Any]]:
    from torch.profiler import ProfilerActivity, profile

    run()  # the first record of a process takes long
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, **options) as profiler:
        run()
    path = Path(os.environ["PYTEST_TMP"]) / "trace.json"
    profiler.export_chrome_trace(str(path))
    events = as_nccl_records(json.loads(path.read_text("utf-8")))["traceEvents"]
    return [each for each in events if each.get("ph") == "X"]


@pytest.fixture(autouse=True)
def _a_place_for_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_TMP", str(tmp_path))


def count(events: list[dict[str, Any]], name: str) -> int:
    return sum(each["name"] == name for each in events)


# ------------------------------------------------------------------------- times


def test_a_longer_message_over_slower_links_takes_longer() -> None:
    def ns(network: str, size: int) -> float:
        return NETWORKS[network].transfer_ns("all_reduce", size, 8)

    assert ns("nvlink", 1 << 10) < ns("nvlink", 1 << 26)
    assert ns("nvlink", 1 << 26) < ns("pcie", 1 << 26)
    assert ns("nvlink", 1 << 10) < ns("ethernet", 1 << 10)


@pytest.mark.parametrize("kind", ["barrier", "gather", "scatter", "send_recv", "all_to_all"])
@pytest.mark.parametrize("ranks", [2, 5, 8])
@pytest.mark.parametrize("network", NETWORKS)
def test_every_kind_has_a_time(network: str, kind: str, ranks: int) -> None:
    assert NETWORKS[network].transfer_ns(kind, 0, ranks) > 0


def test_drawn_times_repeat_with_their_seed_and_late_ranks_make_them_longer() -> None:
    def drawn(seed: int, **changes: float) -> list[int]:
        times = TransferTimes(Network(device="h100_sxm", **changes), seed)  # type: ignore[arg-type]
        return [times.draw_ns("all_gather", 1 << 20, 4) for _ in range(20)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert len(set(drawn(1, jitter=0.0, late_share=0.0))) == 1
    on_time, late = drawn(1, late_share=0.0), drawn(1, late_share=1.0, late_ns=1e9)
    assert min(late) > max(on_time)


@pytest.mark.parametrize(
    "wrong", [{"device": ""}, {"jitter": -1.0}, {"late_share": 2.0}, {"factor": float("nan")}]
)
def test_what_is_no_network_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Network(**{"device": "h100_sxm", **wrong})


@pytest.mark.parametrize(("size", "network"), [(1, "nvlink"), (9, "nvlink"), (2, "carrier pigeon")])
def test_what_is_no_group_is_refused(size: int, network: str) -> None:
    with pytest.raises(OptionError), process_group(size, network):
        pass
    assert not dist.is_initialized()


# ----------------------------------------------------------------------- results


def test_results_are_those_of_equal_ranks(group: Any) -> None:
    values = torch.arange(8.0)
    summed, averaged, kept = values.clone(), values.clone(), values.clone()
    dist.all_reduce(summed)
    dist.all_reduce(averaged, op=dist.ReduceOp.AVG)
    dist.broadcast(kept, 0)
    assert torch.equal(summed, RANKS * values)
    assert torch.equal(averaged, values) and torch.equal(kept, values)
    whole, part, exchanged = torch.zeros(32), torch.zeros(2), torch.zeros(8)
    dist.all_gather_into_tensor(whole, values)
    dist.reduce_scatter_tensor(part, values)
    dist.all_to_all_single(exchanged, values)
    assert torch.equal(whole, values.repeat(RANKS))
    assert torch.equal(part, RANKS * values[:2])
    assert torch.equal(exchanged, values[:2].repeat(RANKS))
    parts = [torch.zeros(8) for _ in range(RANKS)]
    dist.all_gather(parts, values)
    assert all(torch.equal(each, values) for each in parts)
    objects: list[Any] = [None] * RANKS
    dist.all_gather_object(objects, {"a": 1})
    assert objects == [{"a": 1}] * RANKS
    numbers = torch.arange(3)
    dist.all_reduce(numbers)
    assert numbers.tolist() == [0, 4, 8]
    dist.barrier()


def test_lists_roots_and_parts(group: Any) -> None:
    values = torch.arange(4.0)
    scattered, gathered = torch.zeros(4), [torch.zeros(4) for _ in range(RANKS)]
    dist.scatter(scattered, [values + i for i in range(RANKS)])
    dist.gather(values, gathered)
    assert torch.equal(scattered, values) and torch.equal(gathered[3], values)
    reduced, elsewhere = values.clone(), values.clone()
    dist.reduce(reduced, 0)
    dist.reduce(elsewhere, 1)
    assert torch.equal(reduced, RANKS * values) and torch.equal(elsewhere, values)
    exchanged = [torch.zeros(2) for _ in range(RANKS)]
    dist.all_to_all(exchanged, [torch.full((2,), float(i)) for i in range(1, RANKS + 1)])
    assert all(torch.equal(each, torch.ones(2)) for each in exchanged)
    of_lists = torch.zeros(4)
    dist.reduce_scatter(of_lists, [values] * RANKS)
    assert torch.equal(of_lists, RANKS * values)
    with pytest.raises(OptionError, match="equal ranks send 1 rows each"):
        dist.all_to_all_single(torch.zeros(8), torch.zeros(8), [2] * 4, [1, 1, 3, 3])


def test_results_of_other_layouts_and_types(group: Any) -> None:
    gradient = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    truth, short = torch.tensor([True, False]), torch.ones(2, dtype=torch.int16)
    for each in (gradient, truth, short):
        dist.all_reduce(each)
    assert bool((gradient == RANKS).all())
    assert truth.tolist() == [True, False] and short.tolist() == [RANKS, RANKS]


def test_what_is_no_multiple_is_refused(group: Any) -> None:
    with pytest.raises(OptionError, match="PRODUCT"):
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.PRODUCT)


def test_groups_inside_are_emulated_too(group: Any) -> None:
    pair = dist.new_group([0, 2])
    values = torch.ones(2)
    dist.all_reduce(values, group=pair)
    assert values.tolist() == [2, 2]
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    dist.all_reduce(values, group=mesh.get_group("model"))
    assert values.tolist() == [4, 4]


def test_a_result_is_there_after_the_wait_alone() -> None:
    slow = Network(rate=1e9, start_ns=2e8, jitter=0.0, late_share=0.0)
    with process_group(2, slow):
        values = torch.ones(2)
        work = dist.all_reduce(values, async_op=True)
        before = values.tolist()
        work.wait()
        assert before == [1, 1] and values.tolist() == [2, 2]


def test_transfers_of_a_group_follow_each_other() -> None:
    slow = Network(rate=1e9, start_ns=5e7, jitter=0.0, late_share=0.0)
    with process_group(2, slow):
        first, second = torch.ones(1), torch.ones(1)
        dist.all_reduce(first, async_op=True)
        dist.all_reduce(second, async_op=True).wait()
        assert first.item() == 2


# ------------------------------------------------------------- DDP and FSDP2 as they are


def test_gradients_of_ddp_are_those_of_one_process(group: Any) -> None:
    model = DistributedDataParallel(small_model())
    for _ in range(2):
        model.zero_grad()
        model(inputs()).sum().backward()
    for parameter, expected in zip(model.parameters(), local_gradients(), strict=True):
        torch.testing.assert_close(parameter.grad, expected)


@pytest.mark.parametrize(("bucket_mb", "buckets"), [(0.0001, 3), (1, 1)])
def test_ddp_reduces_as_many_buckets_as_asked_for(
    group: Any, bucket_mb: float, buckets: int
) -> None:
    model = DistributedDataParallel(small_model(), bucket_cap_mb=bucket_mb)
    model(inputs()).sum().backward()
    events = recorded(lambda: model(inputs()).sum().backward())
    assert count(events, "c10d::allreduce_") == buckets
    described = [each["args"] for each in events if each["name"] == "record_param_comms"]
    assert {each["Collective name"] for each in described} == {"allreduce"}
    assert {each["Group size"] for each in described} == {RANKS}
    assert sum(each["In msg nelems"] for each in described) == sum(
        parameter.numel() for parameter in model.parameters()
    )


def test_fsdp2_gathers_and_scatters_its_units(group: Any) -> None:
    def sharded() -> nn.Module:
        mesh = dist.init_device_mesh("cpu", (RANKS,))
        model = small_model()
        for unit in model.children():
            fully_shard(unit, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    model = sharded()
    events = recorded(lambda: model(inputs()).sum().backward())
    assert count(events, "c10d::_allgather_base_") == 4  # two units, forward and backward
    assert count(events, "c10d::_reduce_scatter_base_") == 2
    model = sharded()
    model(inputs()).sum().backward()
    # Every rank holds what rank 0 holds, so the weights are copies of its parts.
    whole = small_model()
    with torch.no_grad():
        for each in whole.parameters():
            each.copy_(each[: len(each) // RANKS].repeat(RANKS, *[1] * (each.ndim - 1)))
    whole(inputs()).sum().backward()
    for part, each in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(part.grad.to_local(), each.grad[: len(each) // RANKS])


def test_the_trace_shows_the_transfers_of_the_host() -> None:
    slow = Network(rate=1e9, start_ns=2e7, jitter=0.0, late_share=0.0)
    with process_group(2, slow):
        values = torch.ones(1024)

        def overlapped() -> None:
            work = dist.all_reduce(values, async_op=True)
            torch.ones(3)
            work.wait()

        events = recorded(overlapped)
    (transfer,) = (each for each in events if each["name"] == "gloo:allreduce")
    (beside,) = (each for each in events if each["name"] == "aten::ones")
    assert 2e4 < transfer["dur"] < 2e5  # us; begins at the call and ends with the transfer
    assert transfer["ts"] < beside["ts"] < transfer["ts"] + 2e4


# ------------------------------------------------- recorded jobs, as the package reads them


def small_blocks() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)))


def steps_of(name: str, bad: bool) -> Callable[[], None]:
    parallel = FORMS[name].make(small_blocks(), bad)
    data = torch.randn(16, 64)

    def step() -> None:
        parallel.module.zero_grad()
        parallel.module(data).square().mean().backward()
        parallel.reduce()

    return step


def recorded_run(folder: Path, step: Callable[[], None]) -> Any:
    """Six steps under the package's own recorder, and what it then reads."""
    began = time.monotonic()
    with ttap.profile(folder) as recording:
        for _ in range(6):
            step()
            recording.step()
    assert time.monotonic() - began < 30  # no rank is waited for that is not there
    (file,) = folder.rglob("*.json.gz")
    assert DESCRIPTION not in gzip.decompress(file.read_bytes()).decode()
    return ttap.load(file.parent)


@pytest.mark.parametrize(
    ("name", "ranks", "kinds"),
    [
        ("tiny_buckets", 2, {"all_reduce"}),
        ("one_shard", 4, {"all_gather", "reduce_scatter"}),
    ],
)
def test_a_recorded_job_is_read_with_its_collectives(
    tmp_path: Path, name: str, ranks: int, kinds: set[str]
) -> None:
    """DDP and FSDP2. On a CPU there are no kernels, so faults in those of NCCL stay unknown; one
    rank alone tells neither bandwidths nor who is late."""
    with process_group(ranks, "ethernet"):
        trace = recorded_run(tmp_path / "run", steps_of(name, True))
    (part,) = trace.ranks
    assert (part.rank, part.world_size) == (0, ranks)
    found = trace.collectives().to_pandas()
    assert set(found["kind"]) == kinds and set(found["group_size"]) == {ranks}
    assert set(found["group_description"]) == {"default_pg"} and set(found["dtype"]) == {"float32"}
    weights = 4 * sum(each.numel() for each in small_blocks().parameters())
    kind = "reduce_scatter" if "shard" in name else "all_reduce"
    for _, of_step in found[found["kind"] == kind].groupby("step"):
        assert of_step["bytes"].sum() == weights
    assert (found["longest_duration_ns"] > 25_000).all()  # the start of a transfer over sockets
    verdicts = ttap.diagnose(trace).verdicts
    assert {verdicts[form.type] for form in FORMS.values()} == {"unknown"}


def test_descriptions_reach_the_kernels_that_they_launch() -> None:
    description = {"External id": 7, "Collective name": "allreduce", "In msg nelems": 3, "Rank": 0}
    kernel = {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "args": {"External id": 7}}
    document = {
        "traceEvents": [
            {"name": "emu::record_param_comms", "args": description},
            kernel,
            {"name": "gemm", "args": {"External id": 7}},
        ]
    }
    events = as_nccl_records(document)["traceEvents"]
    assert events[0]["name"] == "record_param_comms"
    assert kernel["args"] == {"External id": 7, "Collective name": "allreduce", "In msg nelems": 3}
    assert events[2]["args"] == {"External id": 7}


# ------------------------------------------------------------------------- forms


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if not form.gpu])
def test_twins_learn_the_same(group: Any, name: str, bad: bool) -> None:
    parallel = FORMS[name].make(small_model(), bad)
    parallel.module(inputs()).sum().backward()
    parallel.reduce()
    parameters = list(parallel.module.parameters())
    assert all(each.grad is not None for each in parameters)
    if "shard" not in name:
        for parameter, expected in zip(parameters, local_gradients(), strict=True):
            torch.testing.assert_close(parameter.grad, expected)


@pytest.mark.parametrize(
    ("name", "bad", "reductions"),
    [
        ("tiny_buckets", False, 1),
        ("all_reduce_by_parameter", True, 4),
        ("waits_for_each_gradient", True, 4),
        ("metrics_in_forward", True, 3),
        ("metrics_in_forward", False, 3),
        ("all_reduce_after_backward", True, 1),
        ("reduced_at_the_end", True, 4),
        ("one_bucket", True, 1),
        ("hidden_statistics", True, 3),
        ("hidden_statistics", False, 2),
        ("waits_for_what_is_over", True, 2),
        ("waits_for_what_is_over", False, 2),
        ("norm_at_the_end", True, 2),
        ("norm_at_the_end", False, 1),
    ],
)
def test_forms_issue_what_they_say(group: Any, name: str, bad: bool, reductions: int) -> None:
    parallel = FORMS[name].make(small_model(), bad)

    def step() -> None:
        parallel.module.zero_grad()
        parallel.module(inputs()).sum().backward()
        parallel.reduce()

    assert count(recorded(step), "c10d::allreduce_") == reductions


# ----------------------------------------------------------------------- kernels


def test_every_name_is_a_kernel() -> None:
    source = (Path(build_kernels.__code__.co_filename).parent / "kernels.cu").read_text("utf-8")
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "send_recv")
    for kind in kinds:
        for dtype in ("float32", "float16", "bfloat16", "int64", "bool"):
            name = collective_kernel(kind, dtype).removeprefix("ncclDevKernel_")
            collective, _, type_ = name.removesuffix("_RING_LL").partition("_Sum_")
            wanted = f"TORCHTRACEAP_REDUCTIONS({collective})" if type_ else f"ncclDevKernel_{name}"
            assert wanted in source
            assert not type_ or f"collective, {type_}," in source


def test_without_a_compiler_the_error_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torchtraceap.lab.collection.emulated.transfers._HOMES", ())
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RecordingError, match="nvcc"):
        build_kernels("sm_90")


# ------------------------------------------------------- the trial with two real ranks

TRIAL = Path(__file__).resolve().parents[3] / "benchmarks/device/nccl_two_ranks.py"


def tried(*options: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(TRIAL), *options], capture_output=True, text=True, check=False
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return done.returncode, found


@pytest.mark.slow
def test_two_ranks_meet_and_the_second_computes_nothing(tmp_path: Path) -> None:
    code, found = tried("--backend", "gloo", "--out", str(tmp_path))
    assert code == 0 and found["works"] is True
    assert (tmp_path / "nccl_two_ranks.json").is_file()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to try it on")
def test_without_a_gpu_nothing_is_tried() -> None:
    code, found = tried()
    assert code == 2 and found["works"] is None
