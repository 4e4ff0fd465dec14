"""Configurations to measure and the protocol to measure them, from options or from a TOML file."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from torchtraceap.core import PathLike, dataclass, read_toml
from torchtraceap.errors import OptionError
from torchtraceap.lab.bench.processes.environment import content_hash
from torchtraceap.lab.workloads.registry import SIZES, workloads
from torchtraceap.lab.workloads.steps import MODES, PRECISIONS

__all__ = ["BOTH", "Protocol", "WorkloadConfig", "expand_modes", "read_plan", "select_names"]

BOTH = "both"
_DEVICES = ("cpu", "cuda")
_LEAST_STEPS = 2


@dataclass(frozen=True, slots=True)
class WorkloadConfig:
    """A configuration of a workload."""

    workload: str
    """A name for `workloads.registry.find`."""
    mode: str = "train"
    device: str = "cpu"
    precision: str = "fp32"
    compiled: bool = False
    batch: int | None = None
    """Samples per step; None means the workload's own."""
    size: str = "tiny"
    threads: int | None = None
    """Threads of an operator on the CPU; None means torch's choice."""

    def __post_init__(self) -> None:
        for value, known in (
            (self.mode, MODES),
            (self.precision, PRECISIONS),
            (self.size, SIZES),
            (self.device.partition(":")[0], _DEVICES),
        ):
            if value not in known:
                raise OptionError(f"there is no {value!r}: {', '.join(known)}")
        for name, number in (("batch", self.batch), ("number of threads", self.threads)):
            if number is not None and number < 1:
                raise OptionError(f"a {name} of {number} makes no sense")

    @property
    def name(self) -> str:
        """Name of the workload without the folders of a file."""
        place, colon, function = self.workload.rpartition(":")
        return f"{Path(place).name}:{function}" if colon and os.sep in place else self.workload

    @property
    def label(self) -> str:
        """The configuration in words."""
        return label_of(asdict(self) | {"workload": self.name})

    def config(self) -> dict[str, Any]:
        """Return plain values that say what is run, with a hash of the file that makes it."""
        return {**asdict(self), "workload": self.name, "code": _code_hash(self.workload)}

    @property
    def config_hash(self) -> str:
        return content_hash(self.config())


def label_of(config: Mapping[str, Any]) -> str:
    """Describe a configuration without its defaults."""
    words = [config["workload"], config["mode"], config["device"], config["precision"]]
    words += ["compiled"] if config["compiled"] else []
    words += [f"batch {config['batch']}"] if config.get("batch") else []
    words += [config["size"]] if config.get("size") not in (None, "tiny") else []
    return " ".join(map(str, words))


@dataclass(frozen=True, slots=True)
class Protocol:
    """The protocol with which a configuration is measured."""

    processes: int = 3
    steps: int = 20
    """Steps of each process in each way of timing."""
    warmup: int = 3
    """Warm-up steps of each process."""
    timeout_s: float = 600.0
    """Time limit of each process in seconds."""
    trace: bool = True

    def __post_init__(self) -> None:
        if self.processes < 1 or self.steps < _LEAST_STEPS or self.warmup < 1:
            raise OptionError(
                f"at least 1 process, {_LEAST_STEPS} steps and 1 step to warm up are needed"
            )
        if not self.timeout_s > 0:
            raise OptionError("a time-out is above 0 seconds")

    def stored_values(self) -> dict[str, int]:
        """Return the values that a run stores."""
        return {"processes": self.processes, "steps": self.steps, "warmup": self.warmup}


def select_names(
    names: Sequence[str],
    *,
    everything: bool = False,
    domain: str | None = None,
    task: str | None = None,
) -> list[str]:
    """Return the given names of workloads, or else those of the suite: everything, or those of a
    domain or of a task.

    Raises:
        OptionError: Both ways are used, none is, none fits, or a name is of no workload.
    """
    by_kind = everything or domain is not None or task is not None
    if bool(names) == by_kind:
        raise OptionError("name workloads, or choose them by --all, --domain or --task")
    known = workloads()
    if names:
        listed = [entry.name for entry in known]
        for name in names:  # before hours go by: a name without a colon has to be listed
            if ":" not in name and name not in listed:
                near = difflib.get_close_matches(name, listed, n=3, cutoff=0.5)
                hint = f", did you mean {' or '.join(near)}?" if near else "; bench list names them"
                raise OptionError(f"there is no workload {name!r}{hint}")
        return list(dict.fromkeys(names))
    chosen = [
        entry.name
        for entry in known
        if domain in (None, entry.domain) and task in (None, entry.task)
    ]
    if not chosen:
        kinds = [(kind, value) for kind, value in (("domain", domain), ("task", task)) if value]
        wanted = " and ".join(f"the {kind} {value!r}" for kind, value in kinds)
        domains = ", ".join(sorted({entry.domain for entry in known if entry.domain}))
        tasks = ", ".join(sorted({entry.task for entry in known if entry.task}))
        raise OptionError(f"no workload is of {wanted} (domains: {domains}; tasks: {tasks})")
    return chosen


def expand_modes(asked: WorkloadConfig, mode: str) -> list[WorkloadConfig]:
    """Return the configuration in a mode, or in both modes."""
    return [replace(asked, mode=each) for each in (MODES if mode == BOTH else (mode,))]


def read_plan(path: PathLike) -> list[WorkloadConfig]:
    """Read configurations from a file.

    Keys at the top hold for all; each `[[run]]` has `names` (a list) and keys of its own: mode
    (also "both"), device, precision, compiled, batch, size, threads.

    Raises:
        MissingFileError: There is no such file.
        OptionError: It is no TOML, or has something else in it; the message names the file.
    """
    document = read_toml(path)
    runs = document.pop("run", None)
    if not isinstance(runs, list) or not runs:
        raise OptionError(f"{path}: has no [[run]]")
    known = {each.name for each in fields(WorkloadConfig)} - {"workload", "mode"}
    found: list[WorkloadConfig] = []
    for place, run in enumerate(runs, 1):
        try:
            settings = document | dict(run)
            names, mode = settings.pop("names", None), settings.pop("mode", "train")
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise OptionError("names is a list of workloads")
            unknown = sorted(settings.keys() - known)
            if unknown:
                raise OptionError(f"there is no key {unknown[0]!r} ({', '.join(sorted(known))})")
            for name in names:
                found += expand_modes(WorkloadConfig(name, **settings), mode)
        except (OptionError, TypeError, ValueError) as error:
            raise OptionError(f"{path}: run {place}: {error}") from error
    return found


def _code_hash(workload: str) -> str | None:
    """Hash the file that makes the workload, if it is known without running foreign code."""
    place, colon, _ = workload.rpartition(":")
    if not colon:
        entry = next((each for each in workloads() if each.name == workload), None)
        if entry is None or entry.source != "suite":
            return None
        found = importlib.util.find_spec(entry.place.partition(":")[0])
        place = found.origin if found is not None and found.origin else ""
    try:
        return hashlib.sha256(Path(place).read_bytes()).hexdigest()[:16]
    except OSError:
        return None
