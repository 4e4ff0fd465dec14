"""Names that say nothing of a user's program: those of PyTorch, of CUDA and HIP, of libraries.

Everything here is an exact list or a grammar over exact lists: a name passes as a whole or not at
all, so that nothing unknown hides behind a known beginning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path

from torchtraceap import _core
from torchtraceap.explanation.kernel_words import FAMILIES, SPECIAL_WORDS
from torchtraceap.ops.kernel_names import canonical_name

__all__ = ["KNOWN_NAMES", "known_form", "read_sections"]

KNOWN_NAMES = Path(__file__).with_name("known_names.txt")
_KERNEL_WORDS = Path(__file__).with_name("kernel_words.txt")

_LONGEST_NAME = 2000
"""Longer ones are cut to their stem."""
_OWN = frozenset(
    ["", "-", "before", "after", "compute", "communication", "memcpy", "copy", "mixed", "idle",
     "none", "unknown", *_core.idle_cause_names()]
)  # fmt: skip
"""Words that this package's tables write in columns of names."""
_EXACT = frozenset(
    ["Activity Buffer Request", "AOTDispatcher Runtime Wrapper Prologue", "Buffer Flush",
     "Command Buffer Full", "CompiledFunction", "CompiledFunctionBackward", "Context Sync",
     "DistributedDataParallel.forward", "Event Sync", "INVALID",
     "Iteration Start: PyTorch Profiler", "Lazy Function Loading", "Pregraph bytecode",
     "PyTorch Profiler (0)", "Record Window End",
     "Stream Sync", "Stream Wait Event", "TorchDynamo Cache Lookup", "Unrecognized", "[memory]",
     "record_param_comms", "search_unused_parameters",
     "torch.distributed.ddp.reducer::copy_bucket_to_grad",
     "torch.distributed.ddp.reducer::search_unused_parameters", "torch::autograd::AccumulateGrad",
     "torch::distributed::reducer::mul_out"]
)  # fmt: skip
"""Ranges and events that PyTorch's profiler, compiler and DDP name, of one form each."""
_COLLECTIVES = (
    "_all_gather_base|_reduce_scatter_base|all_gather|all_gather_into_tensor_coalesced|all_reduce"
    "|all_reduce_barrier|all_reduce_sparse|all_to_all|allreduce_coalesced|barrier|broadcast|gather"
    "|recv|reduce|reduce_scatter|reduce_scatter_tensor_coalesced|scatter|send"
)
_MEMORY = "Array|Device|Host|Managed|Pageable|Pinned|Unified|Unknown"
_RANGES = re.compile(
    rf"""ProfilerStep(?:\*|\#\d{{1,9}})
    |enumerate\(DataLoader\)\#_(?:Single|Multi)Process(?:ing)?DataLoaderIter\.__next__
    |Torch-Compiled\ Region(?::\ \d{{1,4}}/\d{{1,4}})?
    |(?:nccl|gloo|mpi|ucc|xccl):(?:{_COLLECTIVES})(?:\ \d{{1,5}}(?:->|<-)\d{{1,5}})?
    |Memcpy\ [DHPA]to[DHPA](?:\ \((?:{_MEMORY})\ ->\ (?:{_MEMORY})\))?
    |Memset(?:\ \((?:{_MEMORY})\))?
    |(?:Copy|Memcpy)(?:Host|Device)To(?:Host|Device)""",
    re.VERBOSE | re.ASCII,
)
_OPTIMIZER = re.compile(r"Optimizer\.(step|zero_grad)#([A-Za-z]{1,40})\.\1")
_ENGINE = "autograd::engine::evaluate_function: "
_NODE = re.compile(r"([A-Z][A-Za-z0-9]*?)[0-9]{0,2}")
_CALL = re.compile(r"([A-Za-z0-9_]+?)(?:_v[1-9]\d?)?(?:_ptsz|_ptds|_spt)?")
_PUNCTUATION = re.compile(r"[A-Za-z0-9_:<>(),&*\[\]{} #.+-]*")
_IDENTIFIER = re.compile(r"[A-Za-z0-9_]+")
_PART = re.compile(
    rf"{SPECIAL_WORDS}|\d{{1,4}}(?:x\d{{1,4}})+|\d{{1,6}}(?!\d)|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|_+",
    re.ASCII,
)
_INDUCTOR = re.compile(r"triton_(?:poi|red|per|mix|for|spl|tem|unk)_fused_\w+")
_LARGEST = frozenset(
    ["2147483647", "4294967295", "9223372036854775807", "18446744073709551615"]
)  # fmt: skip
"""Numbers of more than six digits that stand in template arguments."""


def read_sections(path: Path) -> dict[str, frozenset[str]]:
    """Lists of names by title: `[title]`, then names between blanks; `#` begins a comment."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("["):
            title = line.strip("[]")
        elif line and not line.startswith("#"):
            found.setdefault(title, []).extend(line.split())
    return {title: frozenset(names) for title, names in found.items()}


@cache
def _sections() -> Mapping[str, frozenset[str]]:
    return read_sections(KNOWN_NAMES) | read_sections(_KERNEL_WORDS)


@lru_cache(maxsize=1 << 14)
def known_form(name: str) -> str | None:
    """The name, or what of it may be shown; None where nothing may.

    Names of kernels that hold more than known words are shown without their arguments.
    """
    if name in _OWN or name in _EXACT or _is_range(name) or _is_registered(name):
        return name
    if len(name) <= _LONGEST_NAME and _is_kernel(name, canonical_name(name)):
        return name
    stem = canonical_name(name)
    return stem if len(stem) <= _LONGEST_NAME and _is_kernel(stem, stem) else None


def _is_range(name: str) -> bool:
    if _RANGES.fullmatch(name):
        return True
    match = _OPTIMIZER.fullmatch(name)
    return match is not None and match[2] in _sections()["optimizers"]


def _is_registered(name: str) -> bool:
    """An operator, a backward node with or without the engine's words, or a call of the driver."""
    sections = _sections()
    inner = name.removeprefix(_ENGINE)
    if inner != name and inner in _EXACT:
        return True
    if name in sections["operators"]:
        return True
    node, call = _NODE.fullmatch(inner), _CALL.fullmatch(name)
    if node is not None and node[1] in sections["nodes"]:
        return True
    return call is not None and (name in sections["calls"] or call[1] in sections["calls"])


def _is_kernel(name: str, stem: str) -> bool:
    """Return True if a kernel belongs to a known library and its name has known words only."""
    of_library = stem in _sections()["stems"] or FAMILIES.match(stem) or _INDUCTOR.fullmatch(stem)
    if not of_library or " " in stem or not _PUNCTUATION.fullmatch(name):
        return False  # with a blank in it the stem is prose
    return all(_is_known_identifier(match[0]) for match in _IDENTIFIER.finditer(name))


def _is_known_identifier(identifier: str) -> bool:
    """Return True if every word of an identifier is known; `_PART` separates the words."""
    literal = re.fullmatch(r"(\d+)(?:[uU]?[lL]{0,2}|[uU])", identifier)
    if literal and (len(literal[1]) <= 6 or literal[1] in _LARGEST):
        return True
    place = 0
    while place < len(identifier):
        part = _PART.match(identifier, place)
        if part is None or not _is_known_part(part):
            return False
        place = part.end()
    return True


def _is_known_part(part: re.Match[str]) -> bool:
    word = part[0]
    if part["special"] is not None or not word[0].isalpha():
        return True
    lower = word.lower()
    if len(lower) < 3:
        return lower in _sections()["short"]
    return lower in _sections()["words"] or lower in _operator_words()


@cache
def _operator_words() -> frozenset[str]:
    """Words of three letters and more in the names of operators."""
    names = " ".join(name.partition("::")[2] for name in _sections()["operators"])
    return frozenset(word for word in re.findall(r"[a-z]+", names.lower()) if len(word) > 2)
