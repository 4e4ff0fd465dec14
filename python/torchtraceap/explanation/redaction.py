"""Allow-list redaction: what a language model is told of names.

Names that are PyTorch's, CUDA's or a known library's pass (`known_form`); every other one becomes a
placeholder, `name_1`, `name_2` and so on in the order in which names are first seen. What a model
answers is mapped back on this machine.

What passes is an exact list or a grammar over exact lists: a name passes as a whole or not at all,
so that nothing unknown hides behind a known beginning. `known_names.txt` and `kernel_words.txt`
hold the lists; names of library kernels have further patterns here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

from torchtraceap import _core
from torchtraceap.explanation.pack import Pack
from torchtraceap.ops.kernel_names import canonical_name

__all__ = ["KNOWN_NAMES", "Redaction", "known_form", "read_sections", "redact"]

_PLACEHOLDER = re.compile(r"(?<![A-Za-z0-9_])name_([1-9][0-9]{0,8})(?![A-Za-z0-9_])")
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
_FAMILIES = re.compile(
    r"""(?:at|at_cuda_detail|c10|cub|thrust|rocprim|hipcub|cute|cudnn|cublas(?:Lt)?|flash|ck|ck_tile
        |cutlass(?:_cudnn)?(?:_infer|_train)?|cask_cudnn(?:_infer|_train)?|pytorch_flash)::
    |cutlass_(?:\d\d_)?(?:simt|tensorop|wmma)\w*\Z
    |(?:maxwell|pascal|volta|turing|ampere|hopper|blackwell)_\w+\Z
    |(?:cudnn_)?(?:infer_|train_)?(?:maxwell|volta|turing|ampere)_scudnn_\w+\Z
    |sm\d\d\d?_xmma_\w+\Z
    |nvjet_\w+\Z
    |batched_transpose_\w+\Z
    |transpose_(?:NCHW2CNHW|CNHW2NCHW)_\w+\Z
    |internal::gemvx::kernel\Z
    |nccl(?:Dev)?Kernel_\w+\Z
    |fmha_(?:cutlass[BF]|v2)_\w+\Z
    |Cijk_A[ijkl]+_B[ijkl]+_\w+\Z
    |MIOpen\w+\Z
    |igemm_(?:fwd|bwd|wrw)_\w+\Z
    |gem[mv]\w+_kernel(?:_val)?\Z
    |(?:nchw|nhwc|foldedNhwc)To(?:Nchw|Nhwc|FoldedNhwc)Kernel\Z""",
    re.VERBOSE,
)
"""Beginnings and forms of the stems of library kernels."""
_SPECIAL_WORDS = (
    r"(?P<special>BFloat16|c10|b?f16|f32|f64|tf32|fp(?:4|8|16|32|64)|e4m3(?:fn)?|e5m2|e8m0"
    r"|[us](?:8|16|32|64)|u?int(?:8|16|32|64)_t|[scdzih](?:\d{3,6})?gemm|gcgemm|gemmk1|gemmSN"
    r"|s\d{3,6}(?=fprop|dgrad|wgrad)|[cr]2[cr]|f2f|ldg\d{1,2}|lds\d{1,3}|sm\d{2,3}[af]?"
    r"|im2col(?:[1-4]d)?|[1-4][dD](?![a-z])|2cta|tile\d{3}t|(?<=_)\d{1,3}x(?=_|\Z)"
    r"|nhwckrsc|nchw|nhwc|NCHW|NHWC|CNHW|Nchw|Nhwc|1C11|NLL|KV|SoftMax|MIOpen|MT(?=\d)"
    r"|LL(?:128)?(?![A-Za-z])|Cijk|Ailk|Alik|Bjlk|Bljk"
    r"|(?<=_)(?:B|S|BS|SB|BBS|BH|AS|HA|HAS|HHS|HSS|SAV)(?=_|\Z)"
    r"|(?<=_)(?:[ntNT]{1,3}|[vhk]|[vV]\d|g\d{1,2}|k\d{2,3})(?=_|\Z)"
    r"|(?<=gemv2)[NT](?=_)|(?<=gemv)NSP|(?<=[sS]plit)K|(?<=cutlass)[BF](?=_)"
    r"|(?<=align)[ac](?=\d)|(?<=coop)[AB](?=_|\Z)|B(?=Offsets)|(?<=strided)B(?=_)|(?<=Convertd)Q"
    r"|(?<=nvjet_)(?:tst|sst|hsh|sss|tss|hss|qqtst|qrtst|rqsss|rrtst|qqsss)(?=_))"
)
"""Types, layouts and shapes that are no words, with what has to stand beside them."""
_PART = re.compile(
    rf"{_SPECIAL_WORDS}|\d{{1,4}}(?:x\d{{1,4}})+|\d{{1,6}}(?!\d)|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|_+",
    re.ASCII,
)
_INDUCTOR = re.compile(r"triton_(?:poi|red|per|mix|for|spl|tem|unk)_fused_\w+")
_LARGEST = frozenset(
    ["2147483647", "4294967295", "9223372036854775807", "18446744073709551615"]
)  # fmt: skip
"""Numbers of more than six digits that stand in template arguments."""


def read_sections(path: Path) -> dict[str, frozenset[str]]:
    """Return lists of names by title: `[title]`, then names between blanks; `#` begins a
    comment."""
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
    """Return all lists; the words are also those of three letters and more of operators."""
    found = read_sections(KNOWN_NAMES) | read_sections(_KERNEL_WORDS)
    operators = " ".join(name.partition("::")[2] for name in found["operators"])
    found["words"] |= {word for word in re.findall(r"[a-z]+", operators.lower()) if len(word) > 2}
    return found


@lru_cache(maxsize=1 << 14)
def known_form(name: str) -> str | None:
    """Return the name, or what of it may be shown; None where nothing may.

    Names of kernels that hold more than known words are shown without their arguments.
    """
    if name in _OWN or name in _EXACT or _RANGES.fullmatch(name) or _is_registered(name):
        return name
    stem = canonical_name(name)
    if len(name) <= _LONGEST_NAME and _is_kernel(name, stem):
        return name
    return stem if len(stem) <= _LONGEST_NAME and _is_kernel(stem, stem) else None


def _is_registered(name: str) -> bool:
    """Return True for an operator, an optimizer's range, a backward node with or without the
    engine's words, or a call of the driver."""
    sections = _sections()
    inner = name.removeprefix(_ENGINE)
    if name in sections["operators"] or (inner != name and inner in _EXACT):
        return True
    optimizer, node = _OPTIMIZER.fullmatch(name), _NODE.fullmatch(inner)
    if optimizer is not None and optimizer[2] in sections["optimizers"]:
        return True
    if node is not None and node[1] in sections["nodes"]:
        return True
    call = _CALL.fullmatch(name)
    return call is not None and (name in sections["calls"] or call[1] in sections["calls"])


def _is_kernel(name: str, stem: str) -> bool:
    """Return True if a kernel belongs to a known library and its name has known words only."""
    of_library = stem in _sections()["stems"] or _FAMILIES.match(stem) or _INDUCTOR.fullmatch(stem)
    if not of_library or " " in stem or not _PUNCTUATION.fullmatch(name):
        return False  # with a blank in it the stem is prose
    return all(_is_known_identifier(identifier) for identifier in _IDENTIFIER.findall(name))


def _is_known_identifier(identifier: str) -> bool:
    """Return True if every word of an identifier is known; `_PART` separates the words."""
    literal = re.fullmatch(r"(\d+)(?:[uU]?[lL]{0,2}|[uU])", identifier)
    if literal and (len(literal[1]) <= 6 or literal[1] in _LARGEST):
        return True
    place = 0
    while place < len(identifier):
        part = _PART.match(identifier, place)
        if part is None:
            return False
        place, word = part.end(), part[0].lower()
        known = _sections()["short" if len(word) < 3 else "words"]
        if part["special"] is None and word[0].isalpha() and word not in known:
            return False
    return True


class Redaction:
    """The placeholders of one run, which may see many packs.

    A name that looks like a placeholder gets one of its own, so that none stands for two things.
    """

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._names: list[str] = []

    def shown(self, name: str) -> str:
        """Return the text that stands for a name: the name, its known part, or a placeholder."""
        known = known_form(name)
        if known is not None:
            return known
        place = self._places.get(name)
        if place is None:
            self._names.append(name)
            place = self._places[name] = len(self._names)
        return f"name_{place}"

    def restore(self, text: str, written: Callable[[str], str] = str) -> str:
        """Return the text with names for placeholders; those that stand for nothing stay.

        Args:
            text: Prose.
            written: Function that writes a name as the text does.
        """

        def name_of(match: re.Match[str]) -> str:
            place = int(match[1])
            return written(self._names[place - 1]) if place <= len(self._names) else match[0]

        return _PLACEHOLDER.sub(name_of, text)


def redact(pack: Pack, redaction: Redaction) -> Pack:
    """Return the pack with what stands for its names; tables are seen first, then rows."""
    return replace(
        pack,
        tables=tuple(
            replace(
                table,
                lines=tuple(
                    replace(line, names=tuple(map(redaction.shown, line.names)))
                    for line in table.lines
                ),
            )
            for table in pack.tables
        ),
        rows={key: replace(row, name=redaction.shown(row.name)) for key, row in pack.rows.items()},
    )
