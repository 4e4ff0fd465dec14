"""The device database: which GPU a trace was recorded on, and its peak rates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from torchtraceap import _core
from torchtraceap.errors import OptionError
from torchtraceap.ops import devices as package
from torchtraceap.ops.devices import Device, device_named, find_device, load_devices
from torchtraceap.ops.devices.__main__ import compile_devices
from torchtraceap.tables.gpu.recorded_device import matrix_units

FOLDER = Path(package.__file__).parent
ORACLES = Path(__file__).resolve().parents[4] / "shared" / "oracles"

# As traces report them: name, multiprocessors, bytes of memory, compute capability.
REPORTED = {
    ("Quadro GP100", 56, 17069309952, "6.0"): "gp100",
    ("Tesla V100-SXM2-32GB", 80, 34079637504, "7.0"): "v100_sxm2_32gb",
    ("Tesla V100-DGXS-32GB", 80, 34084028416, "7.0"): "v100_sxm2_32gb",
    ("Tesla V100-SXM2-16GB", 80, 16945709056, "7.0"): "v100_sxm2_16gb",
    ("NVIDIA GeForce RTX 2080 Ti", 68, 11554586624, "7.5"): "rtx_2080_ti",
    ("NVIDIA A100-PG509-200", 108, 42297524224, "8.0"): "a100_sxm_40gb",
    ("NVIDIA PG509-210", 108, 85198045184, "8.0"): "a100_sxm_80gb",
    ("NVIDIA A100-SXM4-40GB", 108, 42314694656, "8.0"): "a100_sxm_40gb",
    ("NVIDIA A100 80GB PCIe", 108, 84987740160, "8.0"): "a100_pcie_80gb",
    ("NVIDIA A10", 72, 23609475072, "8.6"): "a10",
    ("NVIDIA GeForce RTX 3060", 28, 12487294976, "8.6"): "rtx_3060",
    ("NVIDIA GeForce RTX 3080", 68, 10503258112, "8.6"): "rtx_3080",
    ("NVIDIA RTX A4000", 48, 16892952576, "8.6"): "rtx_a4000",
    ("NVIDIA RTX A5000", 64, 25425608704, "8.6"): "rtx_a5000",
    ("Tesla T4", 40, 15843721216, "7.5"): "t4",
    ("Quadro RTX 6000", 72, 25396838400, "7.5"): "quadro_rtx_6000",
    ("NVIDIA RTX 6000 Ada Generation", 142, 50925535232, "8.9"): "rtx_6000_ada",
    ("NVIDIA RTX 5000 Ada Generation", 100, 34078130176, "8.9"): "rtx_5000_ada",
    ("NVIDIA L4", 58, 23580639232, "8.9"): "l4",
    ("NVIDIA L40S", 142, 47810936832, "8.9"): "l40s",
    ("NVIDIA GeForce RTX 4090", 128, 25393692672, "8.9"): "rtx_4090",
    ("NVIDIA H100 80GB HBM3", 132, 85028634624, "9.0"): "h100_sxm",
    ("NVIDIA H200", 132, 150110011392, "9.0"): "h200_sxm",
    ("NVIDIA H200 NVL", 132, 150110011392, "9.0"): "h200_nvl",
    ("NVIDIA B200", 148, 191503138816, "10.0"): "b200",
    ("AMD Instinct MI210", 104, 68702699520, "9.0"): "mi210",
    ("AMD Instinct MI300X VF", 304, 205571227648, "9.4"): "mi300x",
    ("", 304, 206141652992, "9.4"): "mi300x",
    # Not to be guessed: a card with other memory, a laptop's, a part of a GPU, two of one kind.
    ("NVIDIA H100", 132, 102085492736, "9.0"): None,
    ("NVIDIA GeForce RTX 4090 Laptop GPU", 76, 17170956288, "8.9"): None,
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 14, 5100273664, "8.0"): None,
    ("AMD Radeon Graphics", 104, 68702699520, "9.0"): None,
    ("Imaginary 9000", 1, 1, "1.0"): None,
}


@pytest.mark.parametrize(("reported", "expected"), REPORTED.items())
def test_devices_are_found_by_what_traces_report(
    reported: tuple[str, int, int, str], expected: str | None
) -> None:
    name, multiprocessors, memory, architecture = reported
    found = find_device(
        name, multiprocessors=multiprocessors, memory_bytes=memory, architecture=architecture
    )
    assert (found.id if found else None) == expected


def test_the_name_alone_suffices_but_memory_must_not_contradict() -> None:
    found = find_device("NVIDIA H100 80GB HBM3")
    assert found is not None and found.id == "h100_sxm"
    assert find_device("NVIDIA H100 80GB HBM3", memory_bytes=40 * 10**9) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    {"H200": "h200_sxm", "b200": "b200", "h100_sxm": "h100_sxm", "MI300X": "mi300x"}.items(),
)
def test_a_user_names_a_device(name: str, expected: str) -> None:
    assert device_named(name).id == expected


def test_an_ambiguous_name_lists_the_choices() -> None:
    with pytest.raises(OptionError, match=r"several.*h100_sxm, h100_pcie, h100_nvl"):
        device_named("H100")
    with pytest.raises(OptionError, match="no device of that name"):
        device_named("")


def test_the_json_is_made_from_the_yaml() -> None:
    made = compile_devices(FOLDER / "devices.yaml")
    assert (FOLDER / "devices.json").read_text(encoding="utf-8") == made


def test_every_number_has_a_document() -> None:
    database = json.loads((FOLDER / "devices.json").read_text(encoding="utf-8"))
    groups = [
        group
        for entry in database["devices"]
        for group in entry.values()
        if isinstance(group, dict)
    ]
    assert all(group["source"] in database["documents"] for group in groups)
    used = {group["source"] for group in groups}
    assert used == set(database["documents"])


@pytest.mark.parametrize("device", load_devices().values(), ids=lambda device: device.id)
def test_rates_are_consistent(device: Device) -> None:
    # Two operations per core and cycle at least; a wrong unit or decimal would break this.
    cores = device.vector["fp32"] / (2 * device.clock_mhz * 1e6 * device.multiprocessors)
    assert 50 < cores < 270
    assert 1e11 < device.bandwidth < 1e13
    assert device.matrix.get("bf16", 0) <= device.matrix.get("fp8", 1e99)
    assert device.matrix.get("tf32", 0) < device.matrix.get("fp16", 1e99)
    assert device.vector.get("fp64", 0) <= device.vector["fp32"]
    assert {"chip", "memory", "vector", "links"} <= set(device.sources)


@given(st.text(), st.none() | st.integers(), st.none() | st.integers(), st.none() | st.text())
def test_any_report_is_looked_up(
    name: str, multiprocessors: int | None, memory: int | None, architecture: str | None
) -> None:
    found = find_device(
        name, multiprocessors=multiprocessors, memory_bytes=memory, architecture=architecture
    )
    assert found is None or multiprocessors in (None, found.multiprocessors)


# Half precision and TF32 over plain fp32; 0 where there are no such units.
RATIOS = {
    ("Tesla T4", 7, 5): (65 / 8.1, 0),
    ("NVIDIA GeForce RTX 2080 Ti", 7, 5): (53.8 / 13.4, 0),
    ("NVIDIA RTX A4000", 8, 6): (76.7 / 19.2, 38.3 / 19.2),
    ("NVIDIA GeForce RTX 3060", 8, 6): (25.5 / 12.7, 1),
    ("NVIDIA RTX 6000 Ada Generation", 8, 9): (364.2 / 91.1, 182.1 / 91.1),
    ("NVIDIA A100-SXM4-40GB", 8, 0): (16, 8),
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 8, 0): (16, 8),  # a part has the ratios of the whole
    ("Tesla P100-SXM2-16GB", 6, 0): (0, 0),
    ("AMD Instinct MI300X", 9, 4): (1307.4 / 163.4, 0),
    ("AMD Instinct MI100", 9, 0): (92.3 / 46.1, 0),  # bf16 is the slower one there
    # Not in the database: the least favourable of the architecture, or of the one before.
    ("NVIDIA GeForce RTX 3070", 8, 6): (71 / 35.6, 1),
    ("NVIDIA H100", 9, 0): (835.5 / 60, 417.5 / 60),
    ("Orin", 8, 7): (71 / 35.6, 1),
    ("NVIDIA GeForce GTX 1080", 6, 1): (0, 0),
    ("NVIDIA GeForce GTX 750", 5, 0): (0, 0),
}


def table_of(tmp_path: Path, *devices: dict[str, Any]) -> _core.EventTable:
    path = tmp_path / "trace.json"
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 1, "pid": 0, "tid": 7}
    path.write_text(json.dumps({"deviceProperties": devices, "traceEvents": [event]}))
    return _core.read_trace(str(path))


@pytest.mark.parametrize(("reported", "expected"), RATIOS.items())
def test_matrix_units_are_those_of_the_device(
    tmp_path: Path, reported: tuple[str, int, int], expected: tuple[float, float]
) -> None:
    name, major, minor = reported
    entry = {"id": 0, "name": name, "computeMajor": major, "computeMinor": minor}
    units = matrix_units(table_of(tmp_path, entry))
    assert units is not None and units.device == name
    assert (units.half_ratio, units.tf32_ratio) == pytest.approx(expected)


def test_of_several_devices_the_one_with_most_to_gain_counts(tmp_path: Path) -> None:
    devices = [{"id": i, "name": name} for i, name in enumerate(["Tesla P100-SXM2-16GB", "T4"])]
    units = matrix_units(table_of(tmp_path, *devices))
    assert units is not None and units.device == "T4"


@pytest.mark.parametrize("name", ["", "AMD Radeon RX 7900", "Imaginary 9000"])
def test_an_unknown_device_has_no_ratios(tmp_path: Path, name: str) -> None:
    entry = {"id": 0, "name": name}
    if name.startswith("AMD"):
        entry |= {"computeMajor": 11, "computeMinor": 0}  # not a compute capability of NVIDIA
    assert matrix_units(table_of(tmp_path, entry)) is None
    assert matrix_units(table_of(tmp_path)) is None


PUBLISHED = {
    "a100_sxm": "a100_sxm_80gb",
    "b200_sxm": "b200",
    "h100_sxm": "h100_sxm",
    "h200_sxm": "h200_sxm",
    "l40s": "l40s",
}


@pytest.mark.parametrize(("file", "device_id"), PUBLISHED.items())
def test_rates_agree_with_aiconfigurator(file: str, device_id: str) -> None:
    path = ORACLES / "gemm_aiconfigurator" / f"{file}.yaml"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    gpu = yaml.safe_load(path.read_text(encoding="utf-8"))["gpu"]
    device = load_devices()[device_id]
    assert device.bandwidth == pytest.approx(gpu["mem_bw"], rel=1e-3)
    for name in ("bf16", "int8", "fp8", "fp4"):
        key = {"bf16": "bfloat16_tc_flops"}.get(name, f"{name}_tc_flops")
        if key in gpu:
            assert device.matrix[name] == pytest.approx(gpu[key], rel=1e-3)


def test_rates_agree_with_neusight() -> None:
    folder = ORACLES / "neusight" / "device_configs"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent")
    compared = 0
    for path in folder.glob("*.json"):
        config = json.loads(path.read_text(encoding="utf-8"))
        found = find_device(config["Device"])
        if found is None or path.stem.endswith("_TP"):
            continue
        compared += 1
        rate = config.get("SingleFLOPs", config.get("SingleFLOPsVEC")) * 1e9
        # Some of its clocks are measured ones; 4 % covers them.
        assert found.vector["fp32"] == pytest.approx(rate, rel=0.04), path.name
        assert found.bandwidth == pytest.approx(config["Mem_Bw"] * 1e9, rel=0.05), path.name
    assert compared >= 8


def test_every_device_is_found_by_what_its_driver_would_report() -> None:
    for device in load_devices().values():
        found = find_device(
            device.reported_name,
            multiprocessors=device.multiprocessors or None,
            memory_bytes=device.memory_bytes or None,
            architecture=device.architecture or None,
        )
        assert found is device
