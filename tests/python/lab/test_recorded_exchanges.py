"""Collectives of execution traces, of one rank and of a folder with all."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from conftest import CORPUS

import torchtraceap as ttap
from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.execution import collectives_by_node
from torchtraceap.trace.execution.reader import read_nodes

torch = pytest.importorskip("torch")

from test_captured_files import observed  # noqa: E402
from test_captured_profile import workload  # noqa: E402

from torchtraceap.lab.prediction.capture import capture_execution_trace  # noqa: E402

DLRM = CORPUS.parent / "oracles/dlrm_8xV100_param/dlrm_pytorch_et.tar.gz"
GPU = "v100_sxm2_32gb"


def node(number: int, name: str, parent: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": number, "name": name, "parent": parent, "scope": 0, "tid": 1, **more}


def given(tensors: list[list[Any]], *plain: Any) -> dict[str, Any]:
    kinds = {int: "Int", str: "String", list: "GenericList[Int]"}
    return {
        "inputs": [*tensors, *plain],
        "input_shapes": [*([each[3]] for each in tensors), *([] for _ in plain)],
        "input_types": ["Tensor(float)" for _ in tensors] + [kinds[type(each)] for each in plain],
    }


def tensor(number: int, elements: int) -> list[Any]:
    return [number, number, 0, elements, 4, "cuda:0"]


def read(path: Path, *nodes: dict[str, Any]) -> dict[int, Any]:
    path.write_text(json.dumps({"schema": "1.0.1", "nodes": [node(1, "root", 0), *nodes]}))
    return collectives_by_node(read_nodes(path, with_arguments=True).nodes)


def test_an_all_gather_tells_among_how_many(tmp_path: Path) -> None:
    gather = node(2, "c10d::_allgather_base_", **given([tensor(10, 96), tensor(11, 24)], 0))
    inner = node(3, "record_param_comms", 2, **given([tensor(11, 24)], "_allgather_base"))
    (found,) = read(tmp_path / "et.json", gather, inner).values()
    assert (found.kind, found.group) == ("_allgather_base", (0, 1, 2, 3))
    assert (found.elements_in, found.elements_out, found.dtype.name) == (24, 96, "float32")


def test_what_the_process_group_notes_counts_without_c10d(tmp_path: Path) -> None:
    noted = node(3, "record_param_comms", **given([tensor(11, 24)], 7, "allreduce"))
    waited = node(4, "record_param_comms", 1, inputs=[7, "wait"], input_shapes=[[], []],
                  input_types=["Int", "String"])  # fmt: skip
    (found,) = read(tmp_path / "et.json", noted, waited).values()
    assert (found.kind, found.elements_in, found.group) == ("allreduce", 24, ())


def test_splits_tell_the_kind_and_the_ranks_of_all_others(tmp_path: Path) -> None:
    split = given([tensor(10, 8), tensor(11, 8)], 0, [2, 2, 3, 1], [2, 2, 2, 2])
    uneven = node(2, "c10d::alltoall_base_", **split)
    reduce = node(3, "c10d::allreduce_", **given([tensor(12, 5)], 0))
    first, second = read(tmp_path / "et.json", uneven, reduce).values()
    assert (first.kind, first.group) == ("all_to_allv", (0, 1, 2, 3))
    assert second.group == (0, 1, 2, 3)


def shared() -> dict[str, Any]:
    made = workload("layers", "sgd")
    return made | {"model": torch.nn.parallel.DistributedDataParallel(made["model"])}


@pytest.fixture
def alone() -> Any:
    """A process group of one."""
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def test_a_reducer_is_told_and_waited_for(tmp_path: Path, alone: None) -> None:
    path = observed(tmp_path / "et.json", shared())
    capture = capture_execution_trace(path, ranks=4)
    started = [call for call in capture.calls if call.collective is not None]
    met = {call.collective.elements_in: call.collective.id for call in started if call.collective}
    bucket = met[64 * 128 + 128 + 128 * 10 + 10]  # beside what is exchanged about buckets
    (waiter,) = [call for call in capture.calls if call.waits_for == bucket]
    assert waiter.name == "aten::copy_"
    found = ttap.predict(path, device="H100-SXM", world_size=4)
    assert found.world_size == 4
    assert found.gpu.communication_ns > 0
    assert found.sequence.count("record_param_comms") == len(started)


def test_a_trace_that_names_no_ranks_asks_for_them(tmp_path: Path) -> None:
    reduce = node(2, "c10d::allreduce_", **given([tensor(12, 5)], 0))
    relu = node(3, "aten::relu", **given([tensor(12, 5)]))
    read(tmp_path / "et.json", reduce, relu)
    with pytest.raises(OptionError, match="--world-size"):
        capture_execution_trace(tmp_path / "et.json")
    assert len(capture_execution_trace(tmp_path / "et.json", ranks=2).calls) == 2


def test_operators_of_other_libraries_are_named(tmp_path: Path) -> None:
    lookup = node(2, "fbgemm::lookup", **given([tensor(10, 64), tensor(11, 8)]))
    filled = node(3, "aten::zeros", 2, **given([], [8]))
    read(tmp_path / "et.json", lookup, filled)
    capture = capture_execution_trace(tmp_path / "et.json")
    assert [call.name for call in capture.calls] == ["fbgemm::lookup"]
    found = ttap.predict(tmp_path / "et.json", device="H100-SXM")
    assert [(each.name, each.count) for each in found.unknown] == [("fbgemm::lookup", 1)]
    assert found.gpu.compute_ns > 0


@pytest.mark.slow  # predicts eight ranks of a real job
def test_a_folder_of_all_ranks_is_predicted_together(tmp_path: Path) -> None:
    if not DLRM.exists():
        pytest.skip(f"no {DLRM}; set TORCHTRACEAP_CORPUS")
    with tarfile.open(DLRM) as archive:
        for member in archive:
            name = Path(member.name).name
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None and name.startswith("dlrm_eg_"):
                (tmp_path / name).write_bytes(content.read())
    found = ttap.predict(tmp_path, device=GPU)
    assert (found.source, found.world_size) == ("execution_trace", 8)
    assert len(found.trace.ranks) == 8
    assert found.sequence.count("record_param_comms") == 8
    assert {each.name for each in found.unknown} >= {"fbgemm::bounds_check_indices"}
    with pytest.raises(OptionError, match="execution traces of 8 ranks"):
        ttap.predict(tmp_path, device=GPU, world_size=4)
    (tmp_path / "dlrm_eg_7.json").unlink()
    with pytest.raises(OptionError, match="7 ranks, and their collectives are among 8"):
        ttap.predict(tmp_path, device=GPU)
