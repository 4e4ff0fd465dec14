"""`read_manifest`: which workloads are recorded, and in which forms, in which order.

Note [Rounds]: without forms of its own a workload gets one of each type and a decoy: of those that
fit it the one that came least often so far. Forms for tests alone go to workloads that nothing is
trained on.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from torchtraceap.core.aliases import PathLike
from torchtraceap.datasets.labels import SEEN_TASKS, TASKS
from torchtraceap.errors import MissingFileError, OptionError

__all__ = [
    "FORMS",
    "PRECISIONS",
    "Form",
    "PlannedPair",
    "Scale",
    "Workload",
    "read_manifest",
    "shard",
]


@dataclass(frozen=True, slots=True)
class Form:
    """A way in which a fault, or a decoy, is put into a step."""

    name: str
    type: str
    """Of the fault, or what the decoy looks like."""
    decoy: bool = False
    test: bool = False
    """Never in what anything is trained on."""
    trained: bool = False
    """There must be a backward pass."""
    compiled: bool = False
    parallel: bool = False
    """In the collectives of several ranks, which are emulated."""


def _forms(type_: str, names: str, **facts: bool) -> list[Form]:
    return [Form(name, type_, **facts) for name in names.split()]


def _exchanges(type_: str, names: str, **facts: bool) -> list[Form]:
    return _forms(type_, names, trained=True, parallel=True, **facts)


_LOADING, _PIN, _COPIES = "single_process_data_loading", "no_memory_pin", "high_memcpy"
_BREAK, _HOST = "graph_break", "cpu_bound"
_SMALL, _BLOCKING = "small_nccl_kernels", "nccl_blocks_main_stream"
_SERIAL = "nccl_compute_not_overlapped"

FORMS: dict[str, Form] = {
    form.name: form
    for form in [
        *_forms(_LOADING, "decode_in_main collate_in_main one_slow_worker recreated_loader"),
        *_forms(_LOADING, "locked_samples generator_input", test=True),
        *_forms(_LOADING, "ready_batches", decoy=True),
        *_forms(_PIN, "pageable_workers blocking_upload upload_from_numpy uploads_by_sample"),
        *_forms(_PIN, "small_targets", test=True),
        *_forms(_PIN, "small_constants", decoy=True),
        *_forms(_COPIES, "activations_to_host layers_on_host item_per_layer metrics_in_numpy"),
        *_forms(_COPIES, "average_on_host", trained=True),
        *_forms(_COPIES, "offloaded_activations", test=True, trained=True),
        *_forms(_COPIES, "outputs_as_lists", test=True),
        *_forms(_COPIES, "one_item outputs_home", decoy=True),
        *_forms(_BREAK, "explicit_break log_in_forward branch_on_value", compiled=True),
        *_forms(_BREAK, "numpy_call disabled_operator", compiled=True),
        *_forms(_BREAK, "changing_shapes failing_guards", test=True, compiled=True),
        *_forms(_BREAK, "break_outside", decoy=True, compiled=True),
        *_forms(_HOST, "python_between image_by_image metrics_by_sample"),
        *_forms(_HOST, "unfused_operators one_core"),
        *_forms(_HOST, "unfused_optimizer average_by_tensor", trained=True),
        *_forms(_HOST, "anomaly_mode", test=True, trained=True),
        *_forms(_HOST, "heavy_hooks tiny_modules", test=True),
        *_forms(_HOST, "brief_python", decoy=True),
        *_exchanges(_SMALL, "tiny_buckets all_reduce_by_parameter shared_statistics"),
        *_exchanges(_SMALL, "shards_of_leaves", test=True),
        *_exchanges(_SMALL, "hidden_statistics", decoy=True),
        *_exchanges(_BLOCKING, "waits_for_each_bucket metrics_in_forward"),
        *_exchanges(_BLOCKING, "waits_for_each_gradient", test=True),
        *_exchanges(_BLOCKING, "waits_for_what_is_over", decoy=True),
        *_exchanges(_SERIAL, "all_reduce_after_backward one_bucket"),
        *_exchanges(_SERIAL, "reduced_at_the_end one_shard", test=True),
        *_exchanges(_SERIAL, "norm_at_the_end", decoy=True),
    ]
}  # fmt: skip
"""Every form by its name; the steps themselves need torch."""
PRECISIONS = ("fp32", "bf16")
"""With bf16 by automatic mixed precision."""
_TYPES = (_LOADING, _PIN, _COPIES, _BREAK, _HOST, _SMALL, _BLOCKING, _SERIAL)


@dataclass(frozen=True, slots=True)
class Scale:
    """A size of a workload."""

    batch: int
    side: int
    """Of an image, pixels."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """What else the model is built from."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A model and what it is fed."""

    name: str
    task: str
    family: str
    """Of models: all of one are in one split."""
    make: str
    """`LIBRARY:NAME`."""
    inputs: str
    tiny: Scale
    full: Scale
    trains: bool = True
    compiles: bool = False
    """Its forward pass is one graph."""
    parallel: bool = False
    """All its weights get gradients, so that ranks can share its training."""
    held_out: bool = False
    """Its family is only tested on."""
    precision: str = "fp32"
    """Of `PRECISIONS`: what products and convolutions compute in."""
    multiprocessors: int = 0
    """It may use so many of a GPU's; 0: all of them."""
    forms: tuple[str, ...] = ()

    @property
    def split(self) -> str:
        """Of its traces, by its family and task."""
        if self.task not in SEEN_TASKS:
            return "unseen"
        return "seen" if self.held_out else "train"


@dataclass(frozen=True, slots=True)
class PlannedPair:
    """A pair of traces to record."""

    index: int
    workload: Workload
    form: Form

    @property
    def split(self) -> str:
        """A form for tests alone is never trained on."""
        found = self.workload.split
        return "seen" if self.form.test and found == "train" else found

    def __str__(self) -> str:
        return f"{self.workload.name} {self.form.name}"


def read_manifest(path: PathLike | None = None) -> list[PlannedPair]:
    """The pairs of a manifest in their order.

    Args:
        path: A TOML file (docs/collecting.md); None: the one that is shipped.

    Raises:
        MissingFileError: There is no such file.
        OptionError: It is no manifest: what is wrong with which workload.
    """
    name = "the shipped manifest" if path is None else str(path)
    try:
        document = tomllib.loads(_text(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{name}: is no TOML ({error})") from None
    given = document.get("workload")
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise OptionError(f"{name}: has no [[workload]]")
    workloads = [_workload(f"{name}: workload {i + 1}", each) for i, each in enumerate(given)]
    names = [workload.name for workload in workloads]
    for each in names:
        if names.count(each) > 1:
            raise OptionError(f"{name}: two workloads are called {each!r}")
    return _entries(workloads)


def shard(entries: Sequence[PlannedPair], number: int, count: int) -> list[PlannedPair]:
    """Every count-th entry: part `number` (from 1 on) of so many.

    Raises:
        OptionError: There is no such part.
    """
    if not 1 <= number <= count:
        raise OptionError(f"there is no part {number} of {count}; parts are counted from 1")
    return list(entries[number - 1 :: count])


def _text(path: PathLike | None) -> str:
    if path is None:
        return (files("torchtraceap.lab.collection") / "manifest.toml").read_text("utf-8")
    if not Path(path).is_file():
        raise MissingFileError(f"{path}: no such file")
    return Path(path).read_text("utf-8")


_KEYS = {"name": str, "task": str, "family": str, "make": str, "inputs": str,
         "tiny": dict, "full": dict, "trains": bool, "compiles": bool, "parallel": bool,
         "held_out": bool, "precision": str, "multiprocessors": int, "forms": list}  # fmt: skip


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
    if given.get("multiprocessors", 0) < 0 or (given.get("multiprocessors") and _shared(given)):
        raise OptionError(f"{where}: multiprocessors are a number of one rank's")
    for form in given.get("forms", ()):
        if form not in FORMS:
            raise OptionError(f"{where}: unknown form {form!r}: {', '.join(FORMS)}")
    scales = {key: _scale(f"{where}, {key}", given[key]) for key in ("tiny", "full")}
    facts = {"family": given["name"], **given, **scales, "forms": tuple(given.get("forms", ()))}
    return Workload(**facts)


def _shared(given: dict[str, Any]) -> bool:
    """Emulated collectives run beside the limit: they would take nothing from what computes."""
    return bool(given.get("parallel")) or any(
        FORMS[form].parallel for form in given.get("forms", ()) if form in FORMS
    )


def _scale(where: str, given: dict[str, Any]) -> Scale:
    config = {key: value for key, value in given.items() if key not in ("batch", "side")}
    sizes = [given.get("batch"), given.get("side")]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise OptionError(f"{where}: batch and side must be numbers above 0")
    return Scale(given["batch"], given["side"], config)


def _entries(workloads: Sequence[Workload]) -> list[PlannedPair]:
    used: Counter[str] = Counter()
    pairs = [(each, form) for each in workloads for form in _forms_of(each, used)]
    return [PlannedPair(index, workload, form) for index, (workload, form) in enumerate(pairs)]


def _forms_of(workload: Workload, used: Counter[str]) -> list[Form]:
    """See Note [Rounds]."""
    if workload.forms:
        return [FORMS[name] for name in workload.forms]
    fitting = list(_fitting(workload))
    pools = [[f for f in fitting if f.type == type_ and not f.decoy] for type_ in _TYPES]
    pools.append([form for form in fitting if form.decoy])
    found = [min(pool, key=lambda form: used[form.name]) for pool in pools if pool]
    used.update(form.name for form in found)
    return found


def _fitting(workload: Workload) -> Iterator[Form]:
    tested = workload.split != "train"
    for form in FORMS.values():
        trains = workload.trains or not form.trained
        compiles = workload.compiles or not form.compiled
        shared = workload.parallel or not form.parallel
        if trains and compiles and shared and (tested or not form.test):
            yield form
