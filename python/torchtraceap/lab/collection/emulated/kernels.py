"""The kernels of kernels.cu: built once for a kind of GPU by nvcc; they need no headers of torch.

Where no nvcc is at hand, `TORCHTRACEAP_EMULATED_KERNELS` names a library that was built elsewhere:

    nvcc -std=c++17 -O2 -shared -Xcompiler -fPIC -arch=sm_90 -o emulated.so kernels.cu
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

from torchtraceap.core.writing import replacing
from torchtraceap.lab.collection.emulated.results import Copies
from torchtraceap.record.notices import RecordingError

__all__ = ["Kernels", "build_kernels", "can_write", "kernel_name", "load_kernels"]

_SOURCE = Path(__file__).with_name("kernels.cu")
_LIBRARY = "TORCHTRACEAP_EMULATED_KERNELS"
_HOMES = ("/usr/local/cuda",)
_SCRATCH_BYTES = 64 << 20  # beyond the caches of today's GPUs, so that memory is really used

_TYPES = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.uint8: "u8",
    torch.int8: "u8",
    torch.bool: "u8",
    torch.int32: "u32",
    torch.int64: "u64",
}
_MOVES = {
    "all_gather": "ncclDevKernel_AllGather_RING_LL",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL",
}
_REDUCTIONS = {
    "all_reduce": "AllReduce",
    "barrier": "AllReduce",
    "reduce": "Reduce",
    "reduce_scatter": "ReduceScatter",
}


def kernel_name(kind: str, dtype: torch.dtype) -> str:
    """What NCCL calls the kernel of a collective, without its arguments.

    Everything that is built from sends and receives has one name. Types that NCCL lacks take that
    of bytes.
    """
    if kind in _REDUCTIONS:
        return f"ncclDevKernel_{_REDUCTIONS[kind]}_Sum_{_TYPES.get(dtype, 'u8')}_RING_LL"
    return _MOVES.get(kind, "ncclDevKernel_SendRecv")


def can_write(kernel: str, copies: Copies) -> bool:
    """Whether the kernel of this name writes results of this type; else operators of torch do."""
    return "_Sum_" not in kernel or copies.source.dtype in _TYPES


class Kernels:
    """A built library, and the memory that its kernels move on one device."""

    def __init__(self, library: Path, device: torch.device) -> None:
        try:
            self._launch = ctypes.CDLL(str(library)).torchtraceap_emulate_collective
        except (OSError, AttributeError) as error:
            raise RecordingError(f"{library}: is no library of kernels.cu ({error})") from None
        integer, pointer = ctypes.c_int64, ctypes.c_void_p
        transfer: list[Any] = [
            pointer,
            pointer,
            integer,
            integer,
            ctypes.c_double,
            integer,
            integer,
        ]
        self._launch.argtypes = [ctypes.c_char_p, *transfer, pointer, integer, pointer]
        self._launch.restype = ctypes.c_int
        self._scratch = torch.zeros(_SCRATCH_BYTES, dtype=torch.uint8, device=device)

    def launch(self, name: str, ns: int, moved: int, copies: Copies | None, stream: Any) -> None:
        """Runs a kernel on a stream; it writes `copies` and lasts for `ns`.

        Raises:
            RecordingError: The kernel did not start.
        """
        source, target, counts, factor = 0, 0, (0, 0), 1.0
        if copies is not None and not copies.changes_nothing:
            # What only moves has no type: its kernels count bytes.
            size = 1 if "_Sum_" in name else copies.source.element_size()
            source, target = copies.source.data_ptr(), copies.target.data_ptr()
            counts = copies.source.numel() * size, copies.target.numel() * size
            factor = copies.factor
        code = self._launch(
            name.encode(), source, target, *counts, factor, ns, moved,
            self._scratch.data_ptr(), _SCRATCH_BYTES, stream.cuda_stream,
        )  # fmt: skip
        if code != 0:
            raise RecordingError(f"{name} did not start: CUDA error {code}")


@functools.cache
def load_kernels(device: torch.device) -> Kernels:
    """The kernels for a GPU, built where they were not yet.

    Raises:
        RecordingError: They can't be built or loaded.
    """
    given = os.environ.get(_LIBRARY)
    if given:
        return Kernels(Path(given), device)
    major, minor = torch.cuda.get_device_capability(device)
    return Kernels(build_kernels(f"sm_{major}{minor}"), device)


def build_kernels(architecture: str) -> Path:
    """Compiles kernels.cu, or finds what was compiled before, and gives the library's path.

    Args:
        architecture: Such as `sm_90`.

    Raises:
        RecordingError: There is no nvcc, or it fails.
    """
    source = _SOURCE.read_bytes()
    name = f"emulated-{hashlib.sha256(source).hexdigest()[:16]}-{architecture}.so"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchtraceap"
    if (home / name).is_file():
        return home / name
    home.mkdir(parents=True, exist_ok=True)
    with replacing(home / name) as built:
        command = [_nvcc(), "-std=c++17", "-O2", "-shared", "-Xcompiler", "-fPIC",
                   f"-arch={architecture}", "-o", str(built), str(_SOURCE)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RecordingError(f"nvcc could not build {_SOURCE.name}:\n{done.stderr.strip()}")
    return home / name


def _nvcc() -> str:
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for home in [*homes, *_HOMES]:
        if (Path(home) / "bin" / "nvcc").is_file():
            return str(Path(home) / "bin" / "nvcc")
    found = shutil.which("nvcc")
    if found is None:
        raise RecordingError(
            f"emulated collectives on a GPU need nvcc (set CUDA_HOME), or {_LIBRARY} set to a "
            "library that was built elsewhere"
        )
    return found
