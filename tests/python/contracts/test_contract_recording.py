"""`ttap.contract`: a block is recorded and checked, and what is told leads to the line at fault."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import torchtraceap
from torchtraceap.contracts.limits import Contract
from torchtraceap.contracts.record import ContractBroken, ContractWarning, contract
from torchtraceap.contracts.recorder import Recorder
from torchtraceap.errors import OptionError
from torchtraceap.record import RecordingError, profile

HERE = Path(__file__).name


@pytest.fixture(scope="module")
def torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("torch", reason="torch is not installed")
    module.set_num_threads(1)
    return module


@pytest.fixture(scope="module")
def model(torch: Any) -> Any:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Traces of broken contracts come to the working directory."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def line_of(text: str) -> int:
    """The line of this file that ends so."""
    lines = Path(__file__).read_text("utf-8").splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(text)]
    return found


def steps_of(path: Path) -> list[str]:
    data = path.read_bytes()
    events = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    return sorted(e["name"] for e in events if e.get("name", "").startswith("ProfilerStep#"))


# -- what is told -------------------------------------------------------------------------------


def train(model: Any, x: Any) -> float:
    loss = model(x).square().mean()
    loss.backward()
    return float(loss.detach())  # a number of a tensor


def test_a_planted_item_is_told_with_its_line(torch: Any, model: Any) -> None:
    x = torch.ones(4, 8)
    with pytest.raises(ContractBroken) as caught, contract(syncs=0, h2d_bytes=0) as c:
        for _ in range(2):
            model(x).sum().item()  # planted
            c.step()
    message = str(caught.value)
    assert message.startswith("syncs: 2, limit 0\n")
    line = line_of("# planted")
    assert f"aten::item at {__file__}:{line} (test_a_planted_item_is_told_with_its_line)" in message
    assert "model(x).sum().item()" in message
    assert "h2d_bytes 0: " in message  # could not be checked, and why
    assert c.path is not None and f"trace: {c.path}" in message
    assert caught.value.path == c.path and caught.value.result is c.result
    again = pickle.loads(pickle.dumps(caught.value))  # as processes send it
    assert str(again) == message and again.result == c.result
    assert steps_of(c.path) == ["ProfilerStep#0", "ProfilerStep#1"]
    assert c.result is not None
    (failed,) = c.result.failed
    assert failed.frame is not None and failed.frame.line == line
    assert c.result.paths == (str(c.path),)


def test_a_number_of_a_tensor_is_told_with_its_line_in_a_function(torch: Any, model: Any) -> None:
    with pytest.raises(ContractBroken) as caught, contract(syncs=0):
        train(model, torch.ones(4, 8))
    line = line_of("# a number of a tensor")
    assert f"{__file__}:{line} (train)" in str(caught.value)


def test_the_truth_of_a_tensor_is_told_with_its_line_in_a_loop(torch: Any) -> None:
    x = torch.ones(3)
    with pytest.raises(ContractBroken) as caught, contract(syncs_per_step=0, warmup=1) as c:
        for _ in range(3):
            y = x.sum()
            if y > 2:  # asked for
                y = y.add(1)
            c.step()
    assert f"{__file__}:{line_of('# asked for')} (" in str(caught.value)
    assert "in ProfilerStep#1" in str(caught.value)


def test_an_operator_that_is_anywhere_is_told_as_near(torch: Any) -> None:
    x = torch.ones(3)
    with pytest.raises(ContractBroken) as caught, contract(operators=0):
        x = x + 1
        x = x + 2
    assert f"aten::add near {__file__}:" in str(caught.value)


def test_small_operators_break_launches_per_step(torch: Any) -> None:
    x = torch.ones(64)

    def step(count: int) -> Any:
        y = x
        for _ in range(count):
            y = y.mul(1.01)  # small
        return y

    with contract(launches_per_step="<=8") as c:
        for _ in range(2):
            step(4)
            c.step()
    said = r"launches_per_step: 40, limit <=8"
    with (
        pytest.raises(ContractBroken, match=said) as caught,
        contract(launches_per_step="<=8") as c,
    ):
        for _ in range(2):
            step(40)
            c.step()
    assert f"aten::mul at {__file__}:{line_of('# small')} (step)" in str(caught.value)


def test_recompilations_are_counted(torch: Any) -> None:
    torch._dynamo.reset()

    @torch.compile(backend="eager", dynamic=False)
    def f(x: Any) -> Any:
        return x * 2

    f(torch.ones(2))
    with contract(recompiles=0):
        f(torch.ones(2))
    with pytest.raises(ContractBroken, match="recompiles: 2, limit 0"), contract(recompiles=0):
        for size in (3, 4):
            f(torch.ones(size))


@pytest.mark.slow
def test_collectives_of_two_processes_are_counted(torch: Any, tmp_path: Path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    program = """
import os, sys, torch, torch.distributed as dist
from torchtraceap.contracts.record import ContractBroken, contract
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
x = torch.ones(8)
with contract(collectives_per_step={"all_reduce": 2, "other": 0}) as c:
    for _ in range(2):
        dist.all_reduce(x); dist.all_reduce(x); c.step()
try:
    with contract(collectives={"all_reduce": "<=1"}, name="second"):
        dist.all_reduce(x); dist.all_reduce(x)
except ContractBroken as error:
    print(error.path.name, str(error).splitlines()[0])
dist.destroy_process_group()
"""
    package = str(Path(torchtraceap.__file__).parents[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "meet")],
            env={**os.environ, "RANK": str(rank), "PYTHONPATH": package},
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    said = "collectives: all_reduce 2, limit all_reduce <=1 in second\n"
    assert outputs == [f"second.json.gz {said}", f"second_rank1.json.gz {said}"]


def test_a_time_is_measured_without_frames_and_said(torch: Any) -> None:
    with pytest.raises(ContractBroken) as caught, contract(syncs=0, step_time=">=0 ns"):
        torch.ones(2).sum().item()
    assert "Python frames were not recorded" in str(caught.value)
    assert HERE not in str(caught.value)
    if torch.cuda.is_available():
        return
    # That of a GPU can't be measured here anyway.
    with pytest.raises(ContractBroken) as caught, contract(syncs=0, gpu_idle="<10%"):
        torch.ones(2).sum().item()
    assert "gpu_idle <10%: no GPU event is recorded" in str(caught.value)
    assert HERE in str(caught.value) and "not recorded, since" not in str(caught.value)


# -- steps --------------------------------------------------------------------------------------


def test_a_block_without_steps_is_one_step(torch: Any) -> None:
    x = torch.ones(2)
    with contract(syncs_per_step=2, mode="collect") as c:
        x.sum().item()
        x.sum().item()
    assert c.result is not None and c.result.passed


def test_warm_up_and_what_is_behind_the_last_step_do_not_count(torch: Any) -> None:
    x = torch.ones(2)
    with contract(syncs=0, warmup=1, path="kept.json") as c:
        x.sum().item()
        c.step()
        x.sum()
        c.step()
        x.sum().item()
    assert c.path == Path("kept.json") and steps_of(c.path) == ["ProfilerStep#1"]


def test_what_is_behind_the_warm_up_is_a_step_where_no_other_is(torch: Any) -> None:
    x = torch.ones(2)
    with contract(syncs_per_step=1, warmup=1, mode="collect") as c:
        x.sum()
        c.step()
        x.sum().item()
    assert c.result is not None and c.result.passed
    with pytest.raises(RecordingError, match="2 steps are left out"), contract(syncs=0, warmup=2):
        x.sum()


# -- modes --------------------------------------------------------------------------------------


def test_modes(torch: Any, folder: Path) -> None:
    x = torch.ones(2)
    with pytest.warns(ContractWarning, match="syncs: 1, limit 0"), contract(syncs=0, mode="warn"):
        x.sum().item()
    with contract(syncs=0, mode="collect", name="a b/c") as c:
        x.sum().item()
    assert c.result is not None and not c.result.passed and c.result.name == "a b/c"
    assert c.path == Path("ttap_traces/a_b_c.json.gz") and c.message.startswith("syncs: 1")
    with contract(syncs=0, mode="collect", name="a b/c") as again:  # takes its place
        x.sum().item()
    assert again.path == c.path and len(list(folder.glob("ttap_traces/a_b*"))) == 1
    with contract(gpu_busy=">1%") as c:  # nothing to hold it against is no failure
        x.sum()
    assert c.result is not None and c.result.inconclusive and c.path is None
    said = "could not be checked: gpu_busy"
    with pytest.raises(ContractBroken, match=said), contract(gpu_busy=">1%", strict=True):
        x.sum()


def test_a_named_file_is_kept_and_never_overwritten(torch: Any, folder: Path) -> None:
    for _ in range(2):
        with contract(syncs=0, path="runs/mine.json.gz") as c:
            torch.ones(2).sum()
    assert c.path == Path("runs/mine_2.json.gz")
    assert sorted(p.name for p in folder.glob("runs/*")) == ["mine.json.gz", "mine_2.json.gz"]
    assert not (folder / "ttap_traces").exists()


def test_an_exception_passes_and_nothing_stays_switched_on(torch: Any, folder: Path) -> None:
    with pytest.raises(KeyError, match="mine"), contract(syncs=0) as c:
        torch.ones(2).sum().item()
        raise KeyError("mine")
    assert c.result is None and list(folder.iterdir()) == []
    with contract(syncs=0):
        torch.ones(2).sum()


def test_a_decorator_checks_every_call(torch: Any) -> None:
    @contract(syncs=0)
    def f(fails: bool) -> int:
        """Mine."""
        x = torch.ones(2).sum()
        return int(x.item()) if fails else 3

    @contract(syncs=0)
    async def g() -> int:
        await asyncio.sleep(0)
        return int(torch.ones(2).sum().item())

    assert f(False) == 3 and f.__doc__ == "Mine." and f.__name__ == "f"
    with pytest.raises(ContractBroken, match=r"in test_a_decorator\S+f\n"):
        f(True)
    assert f(False) == 3
    with pytest.raises(ContractBroken):
        asyncio.run(g())
    with pytest.raises(OptionError, match="generator"):

        @contract(syncs=0)
        def numbers() -> Iterator[int]:
            yield 1


def test_a_file_has_the_limits(torch: Any, folder: Path) -> None:
    (folder / "contract.yaml").write_text("syncs: 0\ncontracts:\n  loose:\n    syncs: <=5\n")
    with pytest.raises(ContractBroken), contract("contract.yaml"):
        torch.ones(2).sum().item()
    with contract("contract.yaml", name="loose") as c:
        torch.ones(2).sum().item()
    assert c.result is not None and c.result.name == "loose" and c.result.results[0].line == 4
    with pytest.raises(ContractBroken), contract("contract.yaml", name="loose", syncs=0):
        torch.ones(2).sum().item()
    with contract(Contract.parse({"syncs": 1})):
        torch.ones(2).sum().item()


# -- use that can't give anything ------------------------------------------------------------------


def test_unusable_options_are_told(torch: Any) -> None:
    with pytest.raises(OptionError, match="did you mean syncs"):
        contract(sync=0)
    with pytest.raises(OptionError, match="no limits"):
        contract()
    with pytest.raises(OptionError, match="mode is one of"):
        contract(syncs=0, mode="panic")
    for warmup in (-1, True, 1.5):
        with pytest.raises(OptionError, match="warmup must be"):
            contract(syncs=0, warmup=warmup)  # type: ignore[arg-type]


def test_one_recording_at_a_time(torch: Any, tmp_path: Path) -> None:
    c = contract(syncs=0)
    with pytest.raises(RecordingError, match="outside"):
        c.step()
    with c:
        torch.ones(2).sum()
        with pytest.raises(RecordingError, match="a contract is already recording"):
            contract(syncs=0).__enter__()
        with pytest.raises(RecordingError, match="a contract is already recording"):
            profile(tmp_path).__enter__()
        with pytest.raises(RecordingError, match="used once"):
            c.__enter__()
    with pytest.raises(RecordingError, match="used once"):
        c.__enter__()
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        pytest.raises(RecordingError, match="another torch profiler"),
    ):
        contract(syncs=0).__enter__()
    with (
        pytest.raises(RecordingError, match="was used inside the block"),
        contract(syncs=0),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    ):
        torch.ones(2).sum()
    with contract(syncs=0):  # nothing is left over
        torch.ones(2).sum()


def test_a_step_in_another_thread_is_told(torch: Any) -> None:
    errors: list[str] = []

    def elsewhere() -> None:
        try:
            c.step()
        except RecordingError as error:
            errors.append(str(error))

    with contract(syncs=0) as c:
        torch.ones(2).sum()
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert len(errors) == 1 and "another thread" in errors[0]


def test_a_block_without_an_operator_is_no_success(torch: Any) -> None:
    with contract(syncs=0, launches="<=3") as c:
        pass
    assert [each.status for each in c.result.results] == ["inconclusive"] * 2
    assert "no operation of torch ran" in c.result.results[0].reason and c.path is None
    with (
        pytest.raises(ContractBroken, match="could not be checked"),
        contract(syncs=0, strict=True),
    ):
        pass


@pytest.mark.parametrize("fails", [False, True])
def test_a_swap_of_the_profile_function_does_not_end_the_recording(torch: Any, fails: bool) -> None:
    """As pytest-benchmark does around what it times."""
    before = sys.setprofile
    with contract(operators=0 if fails else ">0", mode="collect") as c:
        own = sys.getprofile()
        sys.setprofile(None)
        torch.ones(3).sum()
        sys.setprofile(own)
        torch.ones(3).sum()
    assert sys.setprofile is before
    assert c.result.passed is not fails
    assert ("swapped the profile function" in c.message) is fails
    assert not fails or c.result.failed[0].measured >= 4


def test_a_recording_can_be_dropped(torch: Any) -> None:
    recorder = Recorder()
    recorder.start(with_stack=False)
    torch.ones(2).sum()
    recorder.drop()
    recorder = Recorder()
    recorder.start(with_stack=False)
    recorder.drop()
