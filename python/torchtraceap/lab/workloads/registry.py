"""Workloads by name: those of the suite, of other packages, of files, and of TorchBench.

Listing them imports neither torch nor what they need: the suite's own are read from its source,
those of other packages from what these declare. TorchBench (github.com/pytorch/benchmark) has a
class `torchbenchmark.models.<name>.Model` for each model.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.core import dataclass
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.workloads.declaration import workload_declaration

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from torchtraceap.lab.workloads.workload import Workload

__all__ = ["GROUP", "SIZES", "TORCHBENCH", "Entry", "Source", "find", "table", "workloads"]

GROUP = "torchtraceap.lab.workloads"
"""Group of the entry points with which a package adds workloads."""
TORCHBENCH = "torchbench"
"""Prefix before the colon of a model in a TorchBench checkout."""
SIZES = ("tiny", "full")
"""Sizes: a step in milliseconds on one core, and one for a GPU."""

_SUITE = "torchtraceap.lab.workloads.suite"
_TORCHBENCH_PACKAGE = "torchbenchmark"
_EXTRAS = {"transformers": "bench", "diffusers": "collect", "timm": "collect",
           "torchvision": "collect"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """A workload that can be requested by name."""

    name: str
    domain: str
    """Domain; empty if a package does not give it, like the next three fields."""
    task: str
    exercises: str
    needs: tuple[str, ...]
    """Required modules in addition to torch."""
    missing: tuple[str, ...]
    """Required modules, torch included, that are not installed here."""
    sized: bool
    """True if it exists in other sizes than "tiny"."""
    source: str
    """"suite", or the package that adds it."""
    place: str
    """`module:function`."""

    @property
    def available(self) -> bool:
        """True if everything that it needs is installed."""
        return not self.missing

    @property
    def why_not(self) -> str:
        """The modules to install; empty if it is available."""
        if not self.missing:
            return ""
        return f"{self.name} needs {' and '.join(self.missing)}: {_how_to_install(self.missing)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the row that the command line lists."""
        return {
            "name": self.name,
            "domain": self.domain,
            "task": self.task,
            "exercises": self.exercises,
            "needs": list(self.needs),
            "available": self.available,
            "missing": list(self.missing),
            "sized": self.sized,
            "source": self.source,
            "place": self.place,
        }


@dataclass(frozen=True, slots=True)
class Source:
    """The meaning of a name: a function that makes a workload, or a TorchBench model."""

    name: str
    entry: Entry | None
    """Entry of the suite or of a package; None for a file, a module or TorchBench."""
    making: Callable[..., Any]
    """Function that makes the workload; for TorchBench, its class `Model`."""
    is_torchbench: bool = False

    def make(self, batch: int | None = None, size: str = "tiny") -> Workload:
        """Make the workload, with the same weights and data each time.

        Args:
            batch: Samples in a step; None: as it comes.
            size: "tiny" or "full".

        Raises:
            OptionError: It can't be made so, or is no workload.
            MissingDependencyError: It needs what is not installed.
        """
        from torchtraceap.lab.workloads.workload import check_workload

        if self.is_torchbench:
            raise OptionError(f"{self.name} is a model of TorchBench, which makes its own steps")
        if size not in SIZES:
            raise OptionError(f"a size is {' or '.join(SIZES)}, not {size!r}")
        if batch is not None and batch < 1:
            raise OptionError(f"a batch of {batch} makes no sense")
        takes = inspect.signature(self.making).parameters
        if batch is not None and "batch" not in takes:
            raise OptionError(f"{self.name} takes no batch: its function has no such argument")
        if size != "tiny" and "size" not in takes:
            raise OptionError(f"{self.name} has one size: its function has no argument 'size'")
        options: dict[str, Any] = {} if batch is None else {"batch": batch}
        if "size" in takes:
            options["size"] = size
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                made = self.making(**options)
            except (OptionError, MissingDependencyError):
                raise
            except ImportError as error:
                missing = getattr(error, "name", None) or str(error).splitlines()[0]
                raise MissingDependencyError(
                    f"{self.name} needs {missing}: {_how_to_install((str(missing),))}"
                ) from error
        return check_workload(made)

    def batch(self, asked: int | None = None) -> int | None:
        """Samples per step; None if the function does not tell."""
        if asked is not None:
            return asked
        parameter = inspect.signature(self.making).parameters.get("batch")
        default = None if parameter is None else parameter.default
        return default if isinstance(default, int) else None


def workloads() -> tuple[Entry, ...]:
    """Return the workloads of the suite, then those of installed packages, each sorted by name."""
    from importlib.metadata import entry_points

    own = _suite()
    names = {entry.name for entry in own}
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    added = tuple(_entry_of_point(point) for point in points if point.name not in names)
    return (*own, *added)


def table() -> list[dict[str, Any]]:
    """Return `workloads()` as rows of plain values."""
    return [entry.to_dict() for entry in workloads()]


def find(name: str) -> Source:
    """Resolve a name; this imports and runs its module.

    Args:
        name: A workload of the suite or of a package, `FILE.py:FUNCTION`,
            `package.module:FUNCTION`, or `torchbench:MODEL`.

    Raises:
        OptionError: There is none; the message says what is like it.
        MissingDependencyError: It needs what is not installed; the message says how to get it.
    """
    from torchtraceap.lab.workloads.workload import find_workload

    head, colon, rest = name.partition(":")
    if colon and head == TORCHBENCH:
        return Source(name, None, _torchbench_model(rest), is_torchbench=True)
    if colon:
        return Source(name, None, find_workload(name))
    entry = next((each for each in workloads() if each.name == name), None)
    if entry is None:
        near = difflib.get_close_matches(name, [each.name for each in workloads()], cutoff=0.5)
        hint = "; `torchtraceap bench list` names them, and FILE.py:FUNCTION is one of your own"
        if near:
            hint = f", did you mean {' or '.join(near)}?"
        raise OptionError(f"there is no workload {name!r}{hint}")
    if entry.missing:
        raise MissingDependencyError(entry.why_not)
    return Source(name, entry, find_workload(entry.place))


def _how_to_install(modules: Sequence[str]) -> str:
    tops = [module.partition(".")[0] for module in modules]
    extras = sorted({_EXTRAS[top] for top in tops if top in _EXTRAS})
    ways = [f"pip install 'torchtraceap[{','.join(extras)}]'"] if extras else []
    others = [top for top in tops if top not in _EXTRAS]
    if others:
        ways.append(f"pip install {' '.join(others)}")
    return " and ".join(ways)


# ------------------------------------------------------------------------- of the suite


@cache
def _suite() -> tuple[Entry, ...]:
    """Return the functions of the suite's modules with a `@workload`, read from their source."""
    found = []
    for path in sorted((Path(__file__).parent / "suite").glob("*.py")):
        for node in ast.parse(path.read_text("utf-8"), str(path)).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for each in node.decorator_list:
                if isinstance(each, ast.Call) and getattr(each.func, "id", "") == "workload":
                    said = {key.arg or "": ast.literal_eval(key.value) for key in each.keywords}
                    sized = any(argument.arg == "size" for argument in node.args.args)
                    place = f"{_SUITE}.{path.stem}:{node.name}"
                    found.append(_entry(node.name, said, sized, "suite", place))
    return tuple(sorted(found, key=lambda entry: entry.name))


def _entry(name: str, said: dict[str, Any], sized: bool, source: str, place: str) -> Entry:
    needs = tuple(said.get("needs", ()))
    missing = tuple(each for each in ("torch", *needs) if not _is_installed(each))
    domain, task, exercises = (str(said.get(key, "")) for key in ("domain", "task", "exercises"))
    return Entry(name, domain, task, exercises, needs, missing, sized, source, place)


@cache
def _is_installed(module: str) -> bool:
    """Return True if a module would be found; only the packages around it are imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


# ------------------------------------------------------------------------- of other packages


def _entry_of_point(point: EntryPoint) -> Entry:
    """Return the entry of an entry point. Its description is known only if its module is already
    loaded, because listing must not run foreign code."""
    import sys

    module, _, function = point.value.partition(":")
    making = getattr(sys.modules.get(module), function, None)
    package = point.dist.name if point.dist is not None else module.partition(".")[0]
    sized = making is not None and "size" in inspect.signature(making).parameters
    return _entry(point.name, workload_declaration(making), sized, package, point.value)


# ------------------------------------------------------------------------- of TorchBench


def _torchbench_model(name: str) -> Callable[..., Any]:
    """Return the class `Model` of a TorchBench model.

    Raises:
        MissingDependencyError: TorchBench, or what the model needs, is not installed.
        OptionError: It has no such model, or it can't be imported.
    """
    if not name.isidentifier():
        raise OptionError(f"a model of TorchBench is torchbench:MODEL, not torchbench:{name}")
    if importlib.util.find_spec(_TORCHBENCH_PACKAGE) is None:
        raise MissingDependencyError(
            "TorchBench is not installed: clone github.com/pytorch/benchmark, run its install.py "
            "with the model's name, and put the checkout on PYTHONPATH"
        )
    place = f"{_TORCHBENCH_PACKAGE}.models.{name}"
    try:
        module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing and place.startswith(missing):
            raise OptionError(f"TorchBench has no model {name!r}") from error
        raise MissingDependencyError(
            f"torchbench:{name} needs {missing}: its checkout's `install.py {name}` installs it"
        ) from error
    except Exception as error:  # a model's module installs and imports whatever it likes
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise OptionError(f"torchbench:{name} can't be imported: {reason}") from error
    model = getattr(module, "Model", None)
    if not callable(model):
        raise OptionError(f"{place} has no class Model")
    found: Callable[..., Any] = model
    return found
