"""Coverage of PyTorch by workloads: functions, operators by type and direction, and kernel
families.

Note [Coverage]: one step on the CPU is run twice. Once under a `TorchFunctionMode`, which sees
Python functions of torch; those that `torch.overrides.get_testing_overrides()` lists are the
surface, as in TorchBench's `userbenchmark/api-coverage` (so that shares compare). Once under a
`TorchDispatchMode`, which sees ATen operators with a kernel of their own, in the backward pass too;
an operator counts once for each type of its first tensor and each direction. What a mode hides
from the other (fast paths ask for overrides) is why they are not run together.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.core import PathLike, Result, dataclass, progress_stage, read_json, write_text
from torchtraceap.errors import OptionError, TraceError
from torchtraceap.lab.bench.processes.programs import run_fresh
from torchtraceap.lab.workloads.registry import find, workloads
from torchtraceap.ops import FAMILIES, family_of

if TYPE_CHECKING:
    from torchtraceap.lab.bench.runs.run_store import Store
    from torchtraceap.lab.workloads.registry import Source

__all__ = [
    "KINDS",
    "Coverage",
    "FailedWorkload",
    "WorkloadCoverage",
    "all_types",
    "finding_types",
    "measure_coverage",
    "read_coverage",
    "stored_coverage",
    "write_coverage",
]

KINDS = ("functions", "ops", "families")
"""Units of coverage: TorchBench's measure (functions), and two of ours."""

_SCHEMA = "torchtraceap.coverage/1"
_FILE = "coverage.json"
_TIMED_STEPS = 3
_IMPORT_TIMEOUT_S = 600
# The first step of an optimizer imports as much as torch itself.
_FIRST_STEP = (
    "import torch; net = torch.nn.Linear(2, 2); net(torch.ones(1, 2)).sum().backward();"
    "torch.optim.AdamW(net.parameters()).step()"
)


@dataclass(frozen=True, slots=True)
class WorkloadCoverage(Result):
    """The coverage of one workload in one mode."""

    name: str
    mode: str
    """"train" or "eval"."""
    functions: tuple[str, ...]
    """Functions of the surface, such as `torch.nn.functional.relu`, sorted."""
    ops: tuple[str, ...]
    """Operators, such as `aten::addmm float32 forward`, sorted."""
    made_s: float
    """Time to make the workload and run its first step, without the import of libraries. Like
    `step_s` in seconds of one core, so that other load on the machine does not count."""
    step_s: float
    """Median time of some steps on one thread."""

    @property
    def families(self) -> tuple[str, ...]:
        """Kernel families of the workload's operators (`models.families`), sorted."""
        return tuple(sorted({family_of(op.partition(" ")[0]) for op in self.ops}))

    def of(self, kind: str) -> tuple[str, ...]:
        """Return the covered items of a unit of `KINDS`.

        Raises:
            OptionError: There is no such kind.
        """
        if kind not in KINDS:
            raise OptionError(f"coverage is of {', '.join(KINDS)}, not of {kind!r}")
        found: tuple[str, ...] = getattr(self, kind)
        return found


@dataclass(frozen=True, slots=True)
class FailedWorkload(Result):
    """A workload that could not be run."""

    name: str
    mode: str
    reason: str


@dataclass(frozen=True, slots=True)
class Coverage(Result):
    """The coverage of workloads, and everything that can be covered."""

    torch: str
    """The version of torch that defines the surface and the operator names."""
    surface: tuple[str, ...]
    """Functions that may be overridden, which are TorchBench's denominator."""
    operators: tuple[str, ...]
    """Names of ATen operators, without those that write into a given output."""
    imports_s: dict[str, float]
    """Import times of torch and of each library in seconds of a core; empty if not measured."""
    rows: tuple[WorkloadCoverage, ...]
    missing: tuple[FailedWorkload, ...] = ()

    def union(self, kind: str) -> frozenset[str]:
        """Return everything that the workloads cover together."""
        return frozenset(each for row in self.rows for each in row.of(kind))

    def universe(self, kind: str) -> tuple[str, ...]:
        """Return everything that can be covered: functions, operator names (without types) or
        families."""
        return {
            "functions": self.surface, "ops": self.operators, "families": FAMILIES
        }[kind]  # fmt: skip

    def covered(self, kind: str) -> frozenset[str]:
        """Return the part of `universe` that the workloads cover together."""
        if kind != "ops":
            return self.union(kind) & frozenset(self.universe(kind))
        return frozenset(op.partition(" ")[0] for op in self.union(kind)) & frozenset(
            self.operators
        )

    def uncovered(self, kind: str) -> tuple[str, ...]:
        """Return the part of `universe` that no workload covers, sorted."""
        return tuple(sorted(frozenset(self.universe(kind)) - self.covered(kind)))

    def unique(self, kind: str) -> dict[str, tuple[str, ...]]:
        """Return for each workload the items that no other one covers, if there are any."""
        by_name: dict[str, set[str]] = {}
        for row in self.rows:
            by_name.setdefault(row.name, set()).update(row.of(kind))
        found = {}
        for name, own in by_name.items():
            others = set().union(*(each for other, each in by_name.items() if other != name))
            if own - others:
                found[name] = tuple(sorted(own - others))
        return found

    def merge(self, other: Coverage) -> Coverage:
        """Return this coverage with another one's rows in front."""
        return replace(
            self,
            imports_s={**other.imports_s, **self.imports_s},
            rows=(*other.rows, *self.rows),
            missing=(*other.missing, *self.missing),
        )

    def restrict(self, names: Collection[str], modes: Collection[str]) -> Coverage:
        """Return the coverage of some workloads and modes."""
        return replace(
            self,
            rows=tuple(row for row in self.rows if row.name in names and row.mode in modes),
            missing=tuple(row for row in self.missing if row.name in names and row.mode in modes),
        )


# ------------------------------------------------------------------------- files


def stored_coverage() -> Coverage:
    """Return the stored coverage of the suite, with the torch version that it names.

    Raises:
        OptionError: The file is missing or of another kind.
    """
    from torchtraceap.lab.workloads import suite

    return read_coverage(Path(suite.__path__[0]) / _FILE)


def read_coverage(path: PathLike) -> Coverage:
    """Read a file that `write_coverage` wrote.

    Raises:
        OptionError: There is none, or it is of another kind.
    """
    try:
        said = read_json(path)
        if said["schema"] != _SCHEMA:
            raise ValueError(said["schema"])
        functions, ops = said["functions"], said["ops"]
        surface = sorted([*functions, *said["functions_beside"]])
        rows = [
            WorkloadCoverage(
                row["name"], row["mode"],
                tuple(functions[place] for place in row["functions"]),
                tuple(ops[place] for place in row["ops"]),
                row["made_s"], row["step_s"],
            )
            for row in said["rows"]
        ]  # fmt: skip
        missing = tuple(FailedWorkload(**each) for each in said["missing"])
        operators = tuple(said["operators"])
        return Coverage(
            said["torch"], tuple(surface), operators, said["imports_s"], tuple(rows), missing
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise OptionError(f"{path}: can't be read as a file of coverage ({error})") from error


def write_coverage(coverage: Coverage, path: PathLike) -> None:
    """Write a coverage; names are written once, and rows refer to their places."""
    functions, ops = (sorted(coverage.union(kind)) for kind in ("functions", "ops"))
    place_of = [{name: place for place, name in enumerate(names)} for names in (functions, ops)]
    rows = [
        {
            "name": row.name, "mode": row.mode, "made_s": row.made_s, "step_s": row.step_s,
            "functions": [place_of[0][name] for name in row.functions],
            "ops": [place_of[1][name] for name in row.ops],
        }
        for row in coverage.rows
    ]  # fmt: skip
    document = {
        "schema": _SCHEMA,
        "torch": coverage.torch,
        "imports_s": coverage.imports_s,
        "missing": [each.to_dict() for each in coverage.missing],
        "functions": functions,
        "functions_beside": sorted(set(coverage.surface) - set(functions)),
        "ops": ops,
        "operators": coverage.operators,
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document.items()]
    listed = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    write_text(Path(path), "{" + ",\n".join([*lines, f'"rows": [\n{listed}\n]']) + "}\n")


# ------------------------------------------------------------------------- measuring


def measure_coverage(
    names: Sequence[str] | None = None,
    modes: Sequence[str] = ("train", "eval"),
    *,
    batch: int | None = None,
    imports: bool = False,
) -> Coverage:
    """Run some steps of each workload on the CPU, in this process, on one thread; see Note
    [Coverage].

    Args:
        names: Names for `workloads.registry.find`; None for all that are listed.
        modes: train, eval or both.
        batch: Samples in a step; None for the workload's own.
        imports: True to measure what imports take too, in processes of their own.

    Raises:
        OptionError: A name is of no workload.
        MissingDependencyError: torch is not there, or what a named workload needs.
    """
    from torchtraceap.record import import_torch

    torch = import_torch()
    if names is None:
        names = [entry.name for entry in workloads() if entry.available]
    sources = [find(name) for name in names]
    exec(_FIRST_STEP, {})  # imports of torch and libraries are not a cost of the workload
    needed = sorted({need for each in sources if each.entry for need in each.entry.needs})
    for module in needed:
        importlib.import_module(module)
    imports_s: dict[str, float] = {}
    if imports:
        programs = {"torch": _FIRST_STEP, **{module: f"import {module}" for module in needed}}
        empty = _seconds("")
        for module, program in programs.items():
            imports_s[module] = round(max(0.0, _seconds(program) - empty), 3)
    rows, missing = list[WorkloadCoverage](), list[FailedWorkload]()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for source in sources:
            for mode in modes:
                with progress_stage(f"covering {source.name} {mode}"):
                    found = _measure_workload(source, mode, batch)
                if isinstance(found, WorkloadCoverage):
                    rows.append(found)
                else:
                    missing.append(found)
                gc.collect()
    finally:
        torch.set_num_threads(threads)
    operators = {
        name.partition(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and not name.endswith(("out", "_out"))
    }
    return Coverage(
        torch.__version__,
        _surface(),
        tuple(sorted(operators)),
        imports_s,
        tuple(rows),
        tuple(missing),
    )


def _seconds(program: str) -> float:
    """Return the seconds of a core that a program takes in a process of its own."""
    return run_fresh([sys.executable, "-c", program], timeout_s=_IMPORT_TIMEOUT_S).cpu_ns / 1e9


def _measure_workload(
    source: Source, mode: str, batch: int | None
) -> WorkloadCoverage | FailedWorkload:
    from torchtraceap.lab.workloads.steps import make_step

    begun = time.process_time()
    try:
        with make_step(source, mode=mode, batch=batch) as step:
            step.step()
            made_s = time.process_time() - begun
            times = []
            for _ in range(_TIMED_STEPS):
                begun = time.process_time()
                step.step()
                times.append(time.process_time() - begun)
            functions = _functions_in(step.step)
            ops = _ops_in(step.step)
        middle = round(sorted(times)[_TIMED_STEPS // 2], 5)
        return WorkloadCoverage(source.name, mode, functions, ops, round(made_s, 4), middle)
    except TraceError as error:
        return FailedWorkload(source.name, mode, str(error))
    except Exception as error:  # a user's workload may raise anything
        said = (str(error).strip() or "no reason given").splitlines()[0][:300]
        return FailedWorkload(source.name, mode, f"{type(error).__name__}: {said}")


def _functions_in(run: Callable[[], Any]) -> tuple[str, ...]:
    """Return the functions of the surface that a run calls."""
    from torch.overrides import TorchFunctionMode

    seen = set[str]()

    class Seeing(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.add(_name(func))
            return func(*args, **(kwargs or {}))

    with Seeing():
        run()
    return tuple(sorted(seen & frozenset(_surface())))


def _ops_in(run: Callable[[], Any]) -> tuple[str, ...]:
    """Return `name type direction` of the operators with kernels."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = set[str]()

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = kwargs or {}
            if torch._C._dispatch_has_kernel_for_dispatch_key(
                func.name(), "CompositeImplicitAutograd"
            ):  # made of others, which is seen only where there is no autograd
                with self:
                    found = func.decompose(*args, **given)
                if found is not NotImplemented:
                    return found
            found = func(*args, **given)
            backward = torch._C._current_graph_task_id() != -1
            dtype = _dtype((args, given)) or _dtype(found) or "none"
            name = func._schema.name
            if name.startswith("aten::"):
                seen.add(f"{name} {dtype} {'backward' if backward else 'forward'}")
            return found

    with Seeing():
        run()
    return tuple(sorted(seen))


def _dtype(value: Any) -> str | None:
    """Return the dtype of the first tensor."""
    import torch

    if isinstance(value, torch.Tensor):
        return str(value.dtype).removeprefix("torch.")
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        return next((found for each in value if (found := _dtype(each)) is not None), None)
    return None


@cache
def _surface() -> tuple[str, ...]:
    """Return the functions that may be overridden, by TorchBench's definition."""
    from torch.overrides import get_testing_overrides

    return tuple(sorted({_name(each) for each in get_testing_overrides()}))


def _name(function: Any) -> str:
    """Return module and name, which identify a function of the surface."""
    if hasattr(function, "__module__"):
        return f"{function.__module__ or ''}.{function.__name__}".lstrip(".")
    return str(getattr(function, "__qualname__", type(function).__name__))


# ------------------------------------------------------------------------- findings


def all_types() -> tuple[str, ...]:
    """Return all types of findings, sorted."""
    from torchtraceap import _core

    return tuple(sorted(rule.type for rule in _core.rules()))


def finding_types(store: Store) -> dict[str, tuple[str, ...]]:
    """Return the types of findings in the diagnoses of each workload's kept runs, sorted.

    Raises:
        StoreError: A file of the store is damaged.
    """
    found: dict[str, set[str]] = {}
    for run in store.runs():
        diagnosis = run.diagnosis
        if diagnosis is not None:
            types = {str(each["type"]) for each in diagnosis.get("findings", ())}
            found.setdefault(str(run.config.get("workload", run.name)), set()).update(types)
    return {name: tuple(sorted(types)) for name, types in sorted(found.items())}
