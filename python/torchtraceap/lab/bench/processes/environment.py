"""The environment of a run: machine, drivers, libraries and settings, without anything that names a
person.

Note [Privacy]: no name of a host or a user, no serial number, and no path goes into a store that
may be handed on. Environment variables are named one by one; of a value that is a path the last
part is kept.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from torchtraceap._version import __version__
from torchtraceap.core import PathLike

__all__ = ["MOMENTARY", "content_hash", "environment_hash", "fingerprint"]

MOMENTARY = "now"
"""Key of the values that change from minute to minute and are not part of the hash."""

_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES", "GOMP_CPU_AFFINITY", "HIP_VISIBLE_DEVICES",
    "KMP_AFFINITY", "KMP_BLOCKTIME", "LD_PRELOAD", "MALLOC_ARENA_MAX", "MALLOC_CONF",
    "MKL_NUM_THREADS", "NCCL_ALGO", "NCCL_PROTO", "NUMEXPR_NUM_THREADS", "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND", "OMP_SCHEDULE", "OMP_WAIT_POLICY",
    "OPENBLAS_NUM_THREADS", "PYTHONDEVMODE", "PYTHONHASHSEED", "PYTHONMALLOC", "PYTHONOPTIMIZE",
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_JIT", "PYTORCH_NVFUSER_DISABLE",
    "TORCHDYNAMO_DISABLE", "TORCHINDUCTOR_FREEZING", "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_CUDNN_V8_API_DISABLED", "TORCH_LOGS",
    "TRITON_INTERPRET",
)  # fmt: skip
_LIBRARIES = (
    "accelerate", "diffusers", "flash-attn", "nvidia-cublas-cu12", "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "numpy", "timm", "torchaudio",
    "torchvision", "transformers", "triton", "xformers",
)  # fmt: skip
# Fields are queried in groups: one that a driver does not know makes a whole query fail.
_GPU_FIXED = (
    ("name", "driver_version", "memory.total"),
    ("power.limit", "clocks.max.sm", "clocks.max.memory", "persistence_mode", "compute_mode"),
    ("mig.mode.current", "ecc.mode.current"),
)
_GPU_NOW = (
    ("pstate", "clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "utilization.gpu",
     "memory.used"),
    ("clocks_event_reasons.active",),
    ("clocks_throttle_reasons.active",),  # its name before driver 535
)  # fmt: skip
_PATIENCE_S = 20.0
"""Time limit of a queried program; `nvidia-smi` takes seconds if the driver sleeps."""


def fingerprint(cwd: PathLike | None = None) -> dict[str, Any]:
    """Return everything that may change how fast programs run here; torch is not imported.

    Args:
        cwd: The folder whose git commit is told; None for the current one.

    Returns:
        Plain values, absent ones None. What is momentary stands under `MOMENTARY`.
    """
    libraries = {name: _version_of(name) for name in _LIBRARIES}
    load = None
    with contextlib.suppress(OSError):
        load = [round(each, 2) for each in os.getloadavg()]
    return {
        "cpu": _cpu(),
        "memory_bytes": _meminfo("MemTotal"),
        "gpus": _gpus(_GPU_FIXED),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "torch": _torch(),
        "libraries": {name: version for name, version in libraries.items() if version},
        "torchtraceap": __version__,
        "variables": {
            name: _without_folders(os.environ[name]) for name in _VARIABLES if name in os.environ
        },
        "git": _git(Path(cwd) if cwd is not None else Path.cwd()),
        MOMENTARY: {
            "load": load,
            "memory_available_bytes": _meminfo("MemAvailable"),
            "gpus": _gpus(_GPU_NOW),
        },
    }


def _without_folders(value: str) -> str:
    """Return a value with the last part of each path alone; see Note [Privacy]."""
    parts = value.split(os.pathsep) if os.sep in value else [value]
    return os.pathsep.join(part.rstrip(os.sep).rpartition(os.sep)[2] for part in parts)


def environment_hash(environment: dict[str, Any]) -> str:
    """Hash the lasting values; runs with equal hashes may be compared without a second look."""
    return content_hash({k: v for k, v in environment.items() if k != MOMENTARY})


def content_hash(value: Any) -> str:
    """Return 16 hexadecimal digits of the sha256 of a plain value, independent of the order of
    keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _cpu() -> dict[str, Any]:
    info = _read("/proc/cpuinfo").splitlines()
    model = next(
        (line.partition(":")[2].strip() for line in info if line.startswith("model name")), ""
    )
    flags = {"1": True, "0": False}
    return {
        "model": model or platform.processor() or None,
        "cores": os.cpu_count(),
        "allowed_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "quota": _read("/sys/fs/cgroup/cpu.max").strip() or None,
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or None,
        "no_turbo": flags.get(_read("/sys/devices/system/cpu/intel_pstate/no_turbo").strip()),
        "smt": flags.get(_read("/sys/devices/system/cpu/smt/active").strip()),
    }


def _meminfo(name: str) -> int | None:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _gpus(wanted: tuple[tuple[str, ...], ...]) -> list[dict[str, str]]:
    """Return the GPUs that NVIDIA's tool reports; empty if there is none."""
    if shutil.which("nvidia-smi") is None:
        return []
    found: list[dict[str, str]] = []
    for names in wanted:
        query = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
        rows = [[cell.strip() for cell in line.split(",")] for line in _output(query).splitlines()]
        if not rows or any(len(row) != len(names) for row in rows):
            continue
        found = found or [{} for _ in rows]
        for gpu, row in zip(found, rows, strict=False):
            gpu.update(zip(names, row, strict=True))
    return found


def _torch() -> dict[str, Any] | None:
    """Return the version of torch from its `version.py`, which is not executed."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    literals: dict[str, Any] = {}
    with contextlib.suppress(SyntaxError):
        for node in ast.parse(_read(Path(spec.origin).parent / "version.py")).body:
            value, single = getattr(node, "value", None), getattr(node, "target", None)
            if isinstance(value, ast.Constant):
                targets = node.targets if isinstance(node, ast.Assign) else [single]
                literals.update({t.id: value.value for t in targets if isinstance(t, ast.Name)})
    return {
        "version": literals.get("__version__") or _version_of("torch"),
        "git": literals.get("git_version"),
        "cuda": literals.get("cuda"),
        "hip": literals.get("hip"),
    }


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path) -> dict[str, Any] | None:
    """Return the commit and a hash of changes since; None outside of a repository."""
    if shutil.which("git") is None:
        return None
    commit = _output(["git", "rev-parse", "HEAD"], folder).strip()
    if not commit:
        return None
    changes = _output(["git", "diff", "HEAD", "--no-ext-diff", "--no-color"], folder)
    digest = hashlib.sha256(changes.encode("utf-8", "replace")).hexdigest()[:16]
    return {"commit": commit, "dirty": bool(changes), "changes": digest if changes else None}


def _output(command: list[str], folder: Path | None = None) -> str:
    """Return the output of a program; empty if it fails."""
    try:
        ended = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ended.stdout.decode("utf-8", errors="replace")


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text("utf-8", errors="replace")
    except OSError:
        return ""
