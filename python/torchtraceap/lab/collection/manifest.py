"""`read_manifest`: the workloads that are recorded, the faults of each, and their order.

Note [Rounds]: without forms of its own a workload gets one fault of each type and a look-alike: of
those that fit it the one that came least often so far. Faults for tests alone go to workloads that
nothing is trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchtraceap.core import PathLike, read_toml
from torchtraceap.datasets import SEEN_TASKS, TASKS
from torchtraceap.errors import OptionError
from torchtraceap.lab.generation.faults import STEP_FAULTS, Fault

__all__ = ["PRECISIONS", "PlannedPair", "Scale", "Workload", "read_manifest", "shard"]

PRECISIONS = ("fp32", "bf16")
"""bf16 is by automatic mixed precision."""
_TYPES = tuple(dict.fromkeys(fault.type for fault in STEP_FAULTS.values()))
_KEYS = {"name": str, "task": str, "family": str, "make": str, "inputs": str,
         "tiny": dict, "full": dict, "trains": bool, "compiles": bool, "parallel": bool,
         "held_out": bool, "precision": str, "multiprocessors": int, "forms": list}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """A size of a workload."""

    batch: int
    side: int
    """Pixels of an image's edge."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Other arguments of the model."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A model and its inputs."""

    name: str
    task: str
    family: str
    """Family of models; all of one are in one split."""
    make: str
    """`LIBRARY:NAME`."""
    inputs: str
    tiny: Scale
    full: Scale
    trains: bool = True
    compiles: bool = False
    """True if its forward pass is one graph."""
    parallel: bool = False
    """True if all its weights get gradients, so that ranks can share its training."""
    held_out: bool = False
    """True if its family is for tests alone."""
    precision: str = "fp32"
    """One of `PRECISIONS`, in which products and convolutions compute."""
    multiprocessors: int = 0
    """Number of a GPU's multiprocessors that it may use; 0: all of them."""
    forms: tuple[str, ...] = ()
    """Names of its faults; empty: see Note [Rounds]."""

    @property
    def split(self) -> str:
        """Split of its traces, by its family and task."""
        if self.task not in SEEN_TASKS:
            return "unseen"
        return "seen" if self.held_out else "train"


@dataclass(frozen=True, slots=True)
class PlannedPair:
    """A pair of traces to record."""

    index: int
    workload: Workload
    fault: Fault

    @property
    def split(self) -> str:
        """Split of its traces; a fault for tests alone is never trained on."""
        found = self.workload.split
        return "seen" if self.fault.test and found == "train" else found

    def __str__(self) -> str:
        return f"{self.workload.name} {self.fault.name}"


def read_manifest(path: PathLike | None = None) -> list[PlannedPair]:
    """Return the pairs of a manifest in their order.

    Args:
        path: A TOML file (docs/labeled_data.md); None: the one that is shipped.

    Raises:
        MissingFileError: There is no such file.
        OptionError: It is no manifest; the message names the workload and what is wrong.
    """
    name = "the shipped manifest" if path is None else str(path)
    document = read_toml(Path(__file__).with_name("manifest.toml") if path is None else path)
    given = document.get("workload")
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise OptionError(f"{name}: has no [[workload]]")
    workloads = [_workload(f"{name}: workload {i + 1}", each) for i, each in enumerate(given)]
    names = [workload.name for workload in workloads]
    for each, count in Counter(names).items():
        if count > 1:
            raise OptionError(f"{name}: two workloads are called {each!r}")
    used: Counter[str] = Counter()
    pairs = [(each, fault) for each in workloads for fault in _faults_of(each, used)]
    return [PlannedPair(index, workload, fault) for index, (workload, fault) in enumerate(pairs)]


def shard(entries: Sequence[PlannedPair], number: int, count: int) -> list[PlannedPair]:
    """Return every count-th entry: part `number` (from 1 on) of so many.

    Raises:
        OptionError: There is no such part.
    """
    if not 1 <= number <= count:
        raise OptionError(f"there is no part {number} of {count}; parts are counted from 1")
    return list(entries[number - 1 :: count])


def _workload(where: str, given: dict[str, Any]) -> Workload:
    where = f"{where} ({given['name']})" if isinstance(given.get("name"), str) else where
    for key, value in given.items():
        if key not in _KEYS:
            raise OptionError(f"{where}: unknown key {key!r}: {', '.join(_KEYS)}")
        if type(value) is not _KEYS[key]:  # for Python a truth value is a number
            raise OptionError(f"{where}: {key} must be {_KEYS[key].__name__}, not {value!r}")
    for key in ("name", "task", "make", "inputs", "tiny", "full"):
        if key not in given:
            raise OptionError(f"{where}: lacks {key}")
    if given["task"] not in TASKS:
        raise OptionError(f"{where}: unknown task {given['task']!r}: {', '.join(TASKS)}")
    if given.get("precision", "fp32") not in PRECISIONS:
        raise OptionError(f"{where}: unknown precision: {', '.join(PRECISIONS)}")
    forms = tuple(given.get("forms", ()))
    # Emulated collectives run beside the limit: they would take nothing from what computes.
    shared = given.get("parallel") or any(
        STEP_FAULTS[form].parallel for form in forms if form in STEP_FAULTS
    )
    if given.get("multiprocessors", 0) < 0 or (given.get("multiprocessors") and shared):
        raise OptionError(f"{where}: multiprocessors are those of a single rank")
    for form in forms:
        if form not in STEP_FAULTS:
            raise OptionError(f"{where}: unknown form {form!r}: {', '.join(STEP_FAULTS)}")
    scales = {}
    for key in ("tiny", "full"):
        config = {name: x for name, x in given[key].items() if name not in ("batch", "side")}
        batch, side = given[key].get("batch"), given[key].get("side")
        if not all(isinstance(size, int) and size > 0 for size in (batch, side)):
            raise OptionError(f"{where}, {key}: batch and side must be numbers above 0")
        scales[key] = Scale(batch, side, config)
    return Workload(**{"family": given["name"], **given, **scales, "forms": forms})


def _faults_of(workload: Workload, used: Counter[str]) -> list[Fault]:
    """Return the faults of a workload. See Note [Rounds]."""
    if workload.forms:
        return [STEP_FAULTS[name] for name in workload.forms]
    tested = workload.split != "train"
    fitting = [
        fault
        for fault in STEP_FAULTS.values()
        if (workload.trains or not fault.trained)
        and (workload.compiles or not fault.compiled)
        and (workload.parallel or not fault.parallel)
        and (tested or not fault.test)
    ]
    pools = [[f for f in fitting if f.type == type_ and not f.look_alike] for type_ in _TYPES]
    pools.append([fault for fault in fitting if fault.look_alike])
    found = [min(pool, key=lambda fault: used[fault.name]) for pool in pools if pool]
    used.update(fault.name for fault in found)
    return found
