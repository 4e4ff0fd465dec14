"""Reads folders of public measurements; what a folder lacks is left out.

Expected below the folder, with the columns of each source (more files of the same kinds are taken
as they come):

    nccl_aiconfigurator/nccl_*.csv      ai-dynamo/aiconfigurator
    vtrain/*_AR_GPU*.csv.gz             VIA-Research/vTrain
    nccl_vidur/*.csv                    microsoft/vidur
    gemm_aiconfigurator/gemm_*.csv.gz   ai-dynamo/aiconfigurator
    neusight/*                          sitar-lab/NeuSight
    dlrm_datasets/locality_stats_*.txt  facebookresearch/dlrm_datasets
"""

from __future__ import annotations

import csv
import gzip
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from torchtraceap.ops.devices import Device, load_devices
from torchtraceap.ops.durations.estimate import UnknownDurationError, resolve_device

NCCL_BYTES = {"half": 2, "bfloat16": 2, "float": 4, "int8": 1, "fp8": 1}
NCCL_KINDS = {"alltoall": "all_to_all"}
# Names in files that are no product names. P4 is not in the device database.
FILE_DEVICES = {"a100_sxm": "a100_sxm_80gb", "h100_sxm": "h100_sxm", "h200_sxm": "h200_sxm"}
P4 = Device(
    name="Tesla P4",
    id="p4",
    bandwidth=192e9,
    vector={"fp32": 5.5e12},
    multiprocessors=20,
    architecture="6.1",
    l2_bytes=2 << 20,
)


@dataclass
class Series:
    """Times over sizes of one collective on one machine."""

    file: str
    source: str
    device: str
    kind: str
    ranks: int
    nodes: int
    dtype: str
    library: str
    sizes: list[float] = field(default_factory=list)
    ns: list[float] = field(default_factory=list)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """One median time per size, ascending."""
        size, time = np.array(self.sizes), np.array(self.ns)
        unique = np.unique(size)
        return unique, np.array([np.median(time[size == one]) for one in unique])


@dataclass
class Products:
    """Measured products of matrices of one device and type."""

    file: str
    device: Device
    dtype: str
    shapes: np.ndarray
    """(batch, m, n, k)"""
    ns: np.ndarray


def device_of(name: str) -> Device | None:
    """A device by a name in a file, or None where the database lacks it."""
    if name == "Tesla P4":
        return P4
    try:
        return resolve_device(FILE_DEVICES.get(name, name))
    except UnknownDurationError:
        return None


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from csv.DictReader(file)


def nccl_series(folder: Path) -> list[Series]:
    """nccl-tests tables: one series per file, collective, type and number of GPUs."""
    found: dict[tuple[str, ...], Series] = {}
    for path in sorted((folder / "nccl_aiconfigurator").glob("nccl_*.csv")):
        match = re.fullmatch(r"nccl_(.+?)_comm_nccl_(.+)", path.stem)
        part, library = match.groups() if match else (path.stem.removeprefix("nccl_"), "")
        for row in rows_of(path):
            chip = device_of(row.get("device") or part) or device_of(part)
            name = chip.id if chip else part
            op, dtype, ranks = row["op_name"], row["nccl_dtype"], row["num_gpus"]
            series = found.setdefault(
                (path.name, name, op, dtype, ranks),
                Series(
                    path.name, "aiconfigurator", name, NCCL_KINDS.get(op, op), int(ranks), 1,
                    dtype, library,
                ),
            )  # fmt: skip
            series.sizes.append(float(row["message_size"]) * NCCL_BYTES[dtype])
            series.ns.append(float(row["latency"]) * 1e6)
    return list(found.values())


def vtrain_series(folder: Path) -> list[Series]:
    """nccl-tests all-reduce, 1 to 1024 MiB by 1 MiB; out-of-place times."""
    found = []
    for path in sorted((folder / "vtrain").glob("*_AR_GPU*.csv.gz")):
        name, ranks = path.name.removesuffix(".csv.gz").split("_AR_GPU")
        chip = {"a100": "a100_sxm_40gb", "v100": "v100_sxm2_32gb"}[name]
        with gzip.open(path, "rt") as file:
            rows = list(csv.reader(file))[1:]
        series = Series(path.name, "vtrain", chip, "all_reduce", int(ranks), 1, "float", "")
        series.sizes = [float(row[0]) for row in rows]
        series.ns = [float(row[3]) for row in rows]
        found.append(series)
    return found


def vidur_series(folder: Path) -> list[Series]:
    """Timed from Python, with host overhead; medians of few repetitions."""
    found: dict[tuple[str, ...], Series] = {}
    for path in sorted((folder / "nccl_vidur").glob("*.csv")):
        chip = {"a100": "a100_sxm_80gb", "h100": "h100_sxm"}[path.name.partition("_")[0]]
        for row in rows_of(path):
            ranks, per_node = int(row["num_workers"]), int(row["devices_per_node"])
            kind = row["collective"]
            key = (path.name, kind, str(ranks), str(per_node))
            series = found.setdefault(
                key, Series(path.name, "vidur", chip, kind, ranks, ranks // per_node, "", "")
            )
            time = float(row[f"time_stats.{kind}.median"]) * 1e6
            if time > 0:
                series.sizes.append(float(row["size"]))
                series.ns.append(time)
    return list(found.values())


def products(folder: Path) -> list[Products]:
    """Measured linear layers, one entry per file."""
    found = []
    types = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "fp8": "fp8"}
    for path in sorted((folder / "gemm_aiconfigurator").glob("gemm_*.csv.gz")):
        rows = list(rows_of(path))
        chip = device_of(rows[0].get("device") or path.name.split("_")[2].split(".")[0])
        dtype = types.get(rows[0]["gemm_dtype"])
        if chip is None or dtype is None:
            continue
        shapes = np.array([[1, int(r["m"]), int(r["n"]), int(r["k"])] for r in rows], float)
        ns = np.array([float(r["latency"]) * 1e6 for r in rows])
        good = ns > 0
        found.append(Products(path.name, chip, dtype, shapes[good], ns[good]))
    return found


def kernel_rows(folder: Path, part: str = "train") -> dict[tuple[str, str], np.ndarray]:
    """NeuSight's fp32 kernels: (operator, device) -> rows of (B, H, ns)."""
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    names = {"ln": "layer_norm"}
    for kind in ("elem", "ln", "softmax"):
        path = folder / "neusight" / f"kernel_{part}_{kind}.csv.gz"
        if not path.exists():
            continue
        for row in rows_of(path):
            key = names.get(row["OPName"], row["OPName"]), row["Device"]
            found[key].append((float(row["B"]), float(row["H"]), float(row["Latency"]) * 1e6))
    return {key: np.array(rows) for key, rows in found.items()}


def histograms(folder: Path) -> list[tuple[str, float, tuple[float, ...], tuple[float, ...]]]:
    """Name, mean reuse, shares of rows and shares of lookups by bin, of each data set."""
    found = []
    for path in sorted((folder / "dlrm_datasets").glob("locality_stats_*.txt")):
        for block in re.split(r"\n(?=fbgemm)", path.read_text()):
            mean = re.search(r"Avg col size: ([\d.]+)", block)
            lists = re.findall(r"sizes?:\n((?:\(.*\n)+)", block)
            if mean and len(lists) == 2:
                rows, lookups = (
                    tuple(float(line.rpartition(": ")[2]) for line in text.splitlines())
                    for text in lists
                )
                found.append((block.split("\n", 1)[0], float(mean[1]), rows, lookups))
    return found


def known(device: str) -> bool:
    """Whether an id is one of the device database."""
    return device in load_devices()
