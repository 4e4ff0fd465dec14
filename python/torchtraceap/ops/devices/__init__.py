"""Peak rates of GPUs, and which GPU a trace was recorded on.

`devices.yaml` is the source, with a document for each group of numbers. What is read at run time
is `devices.json`, made from it by `python -m torchtraceap.ops.devices`; a test holds the two equal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torchtraceap.core.records import dataclass
from torchtraceap.errors import AmbiguousDeviceError, OptionError

__all__ = ["Device", "device_named", "find_device", "load_devices"]

_MAKERS = re.compile(r"\b(?:nvidia|amd|tesla|quadro|geforce|radeon|instinct|vf|corporation)\b")
_OTHER = re.compile(r"[^a-z0-9]+")
# What is reported is what the firmware leaves of binary gigabytes; names count in decimal ones.
_MEMORY_RATIO = (0.9, 1.1)
_NAMELESS = ("", "graphics", "unknown")


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """One GPU as CUDA or HIP shows it: a die of an MI250, not the package.

    A user may make one for a GPU that the database lacks; rates are dense, in flop/s (int8:
    operations/s). Rates that are left out give no percentage for work of that type.
    """

    name: str
    bandwidth: float
    """Of its memory, byte/s."""
    matrix: Mapping[str, float] = field(default_factory=dict)
    """flop/s of tensor or matrix cores by type: fp64, fp32, tf32, fp16, bf16, fp8, int8, fp4."""
    vector: Mapping[str, float] = field(default_factory=dict)
    """flop/s of everything else: fp64, fp32, fp16, bf16."""
    id: str = ""
    vendor: str = ""
    architecture: str = ""
    """Compute capability, such as "9.0"."""
    multiprocessors: int = 0
    """Or compute units; 0 is unknown."""
    clock_mhz: float = 0.0
    memory_bytes: int = 0
    l2_bytes: int = 0
    links: Mapping[str, float] = field(default_factory=dict)
    """byte/s in one direction over all links of the GPU: nvlink, xgmi, c2c, pcie."""
    matches: tuple[str, ...] = ()
    """Parts of the names that drivers report for it."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The document behind each group: chip, memory, matrix, vector, links."""

    @property
    def reported_name(self) -> str:
        """A name that `find_device` knows it by, as its driver would report it."""
        if not self.matches:
            return self.name
        maker = "AMD Instinct" if self.vendor == "amd" else "NVIDIA"
        return f"{maker} {self.matches[0].upper()}"


@cache
def load_devices() -> Mapping[str, Device]:
    """The database by id; read once per process."""
    text = Path(__file__).with_name("devices.json").read_text(encoding="utf-8")
    database = json.loads(text)
    documents = database["documents"]
    devices = (_device(entry, documents) for entry in database["devices"])
    return MappingProxyType({device.id: device for device in devices})


def _device(entry: Mapping[str, Any], documents: Mapping[str, str]) -> Device:
    chip, memory = entry["chip"], entry["memory"]
    groups = {name: entry[name] for name in ("chip", "memory", "vector_tflops", "links")}
    if "matrix_tflops" in entry:
        groups["matrix_tflops"] = entry["matrix_tflops"]
    return Device(
        id=entry["id"],
        name=entry["name"],
        vendor=entry["vendor"],
        architecture=entry["architecture"],
        multiprocessors=chip["multiprocessors"],
        clock_mhz=float(chip["clock_mhz"]),
        l2_bytes=round(chip["l2_mib"] * 2**20),
        memory_bytes=round(memory["size_gb"] * 1e9),
        bandwidth=memory["bandwidth_gbps"] * 1e9,
        matrix=_rates(entry.get("matrix_tflops", {}), 1e12),
        vector=_rates(entry["vector_tflops"], 1e12),
        links=_rates(entry["links"], 1e9),
        matches=tuple(entry["matches"]),
        sources={
            name.removesuffix("_tflops"): documents[group["source"]]
            for name, group in groups.items()
        },
    )


def _rates(group: Mapping[str, Any], unit: float) -> Mapping[str, float]:
    return MappingProxyType(
        {
            name.removesuffix("_gbps"): value * unit
            for name, value in group.items()
            if name != "source"
        }
    )


@lru_cache(maxsize=1024)
def find_device(
    name: str,
    *,
    multiprocessors: int | None = None,
    memory_bytes: int | None = None,
    architecture: str | None = None,
) -> Device | None:
    """The device that a trace's `deviceProperties` describe, or None rather than a guess.

    Args:
        name: As CUDA or HIP reports it. Where the driver gives no product name, an AMD device is
            told by its architecture, compute units and memory if only one has them.
        multiprocessors: Where reported; must agree, so that a part of a GPU (MIG) is not taken
            for the whole.
        memory_bytes: Where reported; must agree within a tenth.
        architecture: Compute capability, such as "9.4".
    """
    # Kept: many ask for the few devices of a trace.
    plain = _plain(name)

    def agrees(device: Device) -> bool:
        return _agrees(device, multiprocessors, memory_bytes, architecture)

    if plain in _NAMELESS:
        if None in (multiprocessors, memory_bytes, architecture):
            return None
        same = [d for d in load_devices().values() if d.vendor == "amd" and agrees(d)]
        return same[0] if len(same) == 1 else None
    best, longest = None, 0
    for device, parts in _parts_of_names():
        length = max(_lengths(parts, plain), default=0)
        if length > longest and agrees(device):
            best, longest = device, length
    return best


def device_named(name: str) -> Device:
    """The device that a user names: an id, a name, or a part of one that is unique.

    Raises:
        OptionError: There is none.
        AmbiguousDeviceError: There are several.
    """
    wanted = _plain(name)
    devices = load_devices().values()
    exact = [d for d in devices if wanted in (_plain(d.id), _plain(d.name))]
    exact = exact or [d for d in devices if wanted in map(_plain, d.matches)]
    found = exact or [d for d in devices if wanted and _holds(_plain(f"{d.id} {d.name}"), wanted)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(d.id for d in (found or devices))
    if found:
        raise AmbiguousDeviceError(
            f"device {name!r}: several devices are called so; give one of: {known}"
        )
    raise OptionError(f"device {name!r}: no device of that name is known; give one of: {known}")


def _plain(name: str) -> str:
    """Small letters and digits in words, without makers and brands."""
    return _OTHER.sub(" ", _MAKERS.sub(" ", name.lower())).strip()


def _holds(text: str, part: str) -> bool:
    return f" {part} " in f" {text} "


@cache
def _parts_of_names() -> tuple[tuple[Device, tuple[str, ...]], ...]:
    """Each device with what its name may be, plain: a trace may describe a device per event."""
    return tuple((d, tuple(map(_plain, d.matches))) for d in load_devices().values())


def _lengths(parts: Iterable[str], plain: str) -> Iterable[int]:
    return (len(part) for part in parts if _holds(plain, part))


def _agrees(
    device: Device, multiprocessors: int | None, memory: int | None, architecture: str | None
) -> bool:
    low, high = _MEMORY_RATIO
    return (
        (multiprocessors is None or multiprocessors == device.multiprocessors)
        and (memory is None or low <= memory / device.memory_bytes <= high)
        and (architecture is None or architecture == device.architecture)
    )
