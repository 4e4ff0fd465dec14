"""Sharded embedding tables as in TorchRec, with a replicated dense part.

Note [A step]: the first table that a model reads triggers the lookup of all. Indices go to the
ranks that have the tables (an exchange of the sizes, for which the host waits, one of the lengths
of bags and one of the indices), each rank looks up its own tables for the samples of all in one
fused kernel, and the pooled rows return in an all-to-all. In the backward pass their gradients take
the way back, and the lookup's backward updates the rows, so that tables have no gradients of their
own. Row-wise sharded tables are summed on every rank and combined by a reduce-scatter; in the
backward pass an all-gather brings each rank all gradients. Replicated tables stay in the dense
part, which is wrapped in DistributedDataParallel.

Note [Groups]: tables are looked up together if they have the same kind of placement, element type
and number of bags.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn

from torchtraceap.errors import OptionError
from torchtraceap.lab.prediction.capture.recorder import Recorder
from torchtraceap.lab.prediction.capture.run import run_step
from torchtraceap.lab.prediction.lowering.kernels.embeddings import BACKWARD, FORWARD
from torchtraceap.lab.prediction.parallel.data import DDP_STEPS, wrap_ddp
from torchtraceap.lab.prediction.parallel.exchanges import gather, scatter_sums
from torchtraceap.lab.prediction.parallel.placement import Lookup, Placement
from torchtraceap.lab.sharding.cost import OPTIMIZERS
from torchtraceap.lab.workloads.workload import Workload

__all__ = ["run_shared_tables", "table_lookups", "table_optimizer"]

_OPTIMIZERS = (
    (torch.optim.SGD, "sgd"),
    (torch.optim.Adagrad, "adagrad"),
    ((torch.optim.Adam, torch.optim.AdamW), "adam"),
)
_DEFAULT_OPTIMIZER = "rowwise_adagrad"
_NUMBER = 4
"""Bytes of a number of the optimizer's state, in fp32."""


# ------------------------------------------------------------------------------- what is asked


@dataclass(frozen=True, slots=True)
class _TableUse:
    """A use of a table in a forward pass."""

    module: nn.Module
    lookup: Lookup
    indices: torch.Tensor
    """Integer indices, [indices]."""
    bounds: torch.Tensor
    """Offsets of bags, or of rows where every bag has as many."""
    shape: tuple[int, ...]
    """Shape of the output."""


def table_lookups(workload: Workload) -> tuple[Lookup, ...]:
    """Return the uses of embedding tables in a step of a workload, in order.

    Raises:
        OptionError: A table can't be shared; the message says why.
    """
    return tuple(each.lookup for each in _table_uses(workload))


def table_optimizer(workload: Workload) -> str:
    """Return the optimizer of the tables as `choose_sharding` names it; row-wise Adagrad by
    default."""
    if workload.optimizer is None:
        return "sgd"
    try:
        made = workload.optimizer([nn.Parameter(torch.empty(1))])
    except Exception:  # one that takes names or groups: its own run says what is wrong, if anything
        return _DEFAULT_OPTIMIZER
    members = made.values() if isinstance(made, Mapping) else made
    first = next(iter(members), None) if isinstance(members, Iterable) else made
    return next((name for kind, name in _OPTIMIZERS if isinstance(first, kind)), _DEFAULT_OPTIMIZER)


def _table_uses(workload: Workload) -> list[_TableUse]:
    """Return the uses of tables in a forward pass.

    Tables are embedding modules whose weight belongs to no other module.
    """
    found: list[_TableUse] = []
    modules = [*workload.model.named_modules()]
    owners = Counter(id(each) for _, module in modules for each in module._parameters.values())
    with ExitStack() as stack:
        for name, module in modules:
            if not isinstance(module, (nn.EmbeddingBag, nn.Embedding)):
                continue
            if owners[id(module.weight)] == 1:
                note = partial(_note_use, found, name)
                hook = module.register_forward_pre_hook(note, with_kwargs=True)
                stack.callback(hook.remove)
        stack.enter_context(torch.no_grad())
        workload.forward()
    return found


def _note_use(
    found: list[_TableUse], name: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Add the use of a table by a call of its module."""
    names = ("input", "offsets", "per_sample_weights")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    indices, offsets = given["input"], given.get("offsets")
    reasons = {
        "it takes the largest of a bag": getattr(module, "mode", "sum") == "max",
        "it has max_norm": module.max_norm is not None,
        "its gradients are scaled by frequency": module.scale_grad_by_freq,
        "its lookups have weights of their own": given.get("per_sample_weights") is not None,
    }
    reason = next((text for text, holds in reasons.items() if holds), None)
    if reason:
        raise OptionError(f"table {name} can't be shared among ranks: {reason}")
    rows, columns = module.num_embeddings, module.embedding_dim
    if isinstance(module, nn.Embedding):
        bags, shape = indices.numel(), (*indices.shape, columns)
    elif offsets is None:
        bags, shape = indices.shape[0], (indices.shape[0], columns)
    else:
        bags = offsets.numel() - bool(module.include_last_offset)
        shape = bags, columns
    dtype = str(module.weight.dtype).removeprefix("torch.")
    lookup = Lookup(name, rows, columns, dtype, bags, indices.numel())
    bounds = indices if offsets is None else offsets
    found.append(_TableUse(module, lookup, indices.reshape(-1), bounds, shape))


# ------------------------------------------------------------------------------- geometry


@dataclass(frozen=True, slots=True)
class _Part:
    """Columns of a table on one rank."""

    use: int
    """Index of the use."""
    rows: int
    columns: int
    indices: float
    """Indices of one rank's samples that are looked up here."""


_GroupKey: TypeAlias = tuple[bool, int, torch.dtype]
"""Key of a group: split by rows or not, bags of one rank's samples, element type."""


def _grouped_parts(
    uses: Sequence[_TableUse], placement: Placement
) -> dict[_GroupKey, list[list[_Part]]]:
    """Return the parts on each rank of the tables that are looked up together."""
    world = placement.world_size
    found: dict[_GroupKey, list[list[_Part]]] = defaultdict(lambda: [[] for _ in range(world)])
    for index, use in enumerate(uses):
        lookup = use.lookup
        dtype = use.module.get_parameter("weight").dtype
        if lookup.table in placement.by_rows:
            each = -(-lookup.rows // world)
            for rank, own in enumerate(found[True, lookup.bags, dtype]):
                rows = max(0, min(each, lookup.rows - rank * each))
                own.append(_Part(index, rows, lookup.columns, lookup.indices / world))
        for piece in placement.pieces.get(lookup.table, ()):
            part = _Part(index, lookup.rows, piece.columns, lookup.indices)
            found[False, lookup.bags, dtype][piece.rank].append(part)
    return found


# ------------------------------------------------------------------------------- lookups


class _Fused(torch.autograd.Function):
    """FBGEMM's lookup of several tables, whose backward pass updates them."""

    @staticmethod
    def forward(
        ctx: Any, owner: _SharedGroup, values: torch.Tensor, offsets: torch.Tensor, _: torch.Tensor
    ) -> torch.Tensor:
        ctx.owner = owner
        ctx.save_for_backward(values, offsets)
        with owner.recorder.blank():
            pooled = torch.empty(owner.bags, owner.width, dtype=owner.dtype)
        given = {"dev_weights": owner.weights, "indices": values, "offsets": offsets}
        if owner.width:
            owner.recorder.write(FORWARD, "default", {**given, **owner.sizes()}, (pooled,))
        return pooled

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        owner = ctx.owner
        values, offsets = ctx.saved_tensors
        given = {
            "grad_output": grads[0],
            "dev_weights": owner.weights,
            "indices": values,
            "offsets": offsets,
            **{f"momentum{number}": each for number, each in enumerate(owner.state, 1)},
            **owner.sizes(),
        }
        if owner.width:
            owner.recorder.write(BACKWARD[owner.optimizer], "default", given, ())
        return None, None, None, None


class _PooledToSamples(torch.autograd.Function):
    """All-to-all of pooled rows to the ranks of their samples, and of gradients back."""

    @staticmethod
    def forward(ctx: Any, owner: _SharedGroup, pooled: torch.Tensor) -> torch.Tensor:
        ctx.owner = owner
        sent, received = owner.pooled_splits()
        ctx.splits = sent, received
        out = pooled.new_empty(sum(received))
        dist.all_to_all_single(
            out, pooled.view(-1), received, sent, group=owner.process_group, async_op=True
        )
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        owner, (sent, received) = ctx.owner, ctx.splits
        out = grads[0].new_empty(sum(sent))
        dist.all_to_all_single(
            out, grads[0].contiguous(), sent, received, group=owner.process_group, async_op=True
        )
        return None, out.div_(dist.get_world_size(owner.process_group)).view(
            owner.bags, owner.width
        )


class _SumsToSamples(torch.autograd.Function):
    """Reduce-scatter of the sums of rows to the ranks of their samples."""

    @staticmethod
    def forward(ctx: Any, owner: _SharedGroup, pooled: torch.Tensor) -> torch.Tensor:
        ctx.owner = owner
        return scatter_sums(pooled, owner.process_group, 0, async_op=True)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        owner = ctx.owner
        out = gather(grads[0], owner.process_group, 0, async_op=True)
        return None, out.div_(dist.get_world_size(owner.process_group))


class _SharedGroup(nn.Module):
    """This rank's part of tables that are looked up together; see Note [Groups]."""

    def __init__(
        self,
        key: _GroupKey,
        parts: Sequence[Sequence[_Part]],
        uses: Sequence[_TableUse],
        process_group: dist.ProcessGroup,
        recorder: Recorder,
        optimizer: str,
    ) -> None:
        super().__init__()
        self._is_by_rows, self._samples_bags, self.dtype = key
        self.process_group, self.recorder, self.optimizer = process_group, recorder, optimizer
        self._table_uses = uses
        self._parts, self._own = parts, parts[process_group.rank()]
        self.bags = self._samples_bags * process_group.size()
        """Bags of all ranks' samples."""
        self._widths = [sum(part.columns for part in own) for own in parts]
        """Columns on each rank."""
        self.width = self._widths[process_group.rank()]
        elements = sum(part.rows * part.columns for part in self._own)
        by_row, by_element = OPTIMIZERS[optimizer]
        with recorder.blank():
            weights = torch.empty(elements, dtype=self.dtype)
            self.weights = nn.Parameter(weights, requires_grad=False)
            self.state = [torch.empty(elements) for _ in range(by_element // _NUMBER)]
            if by_row:
                self.state = [torch.empty(sum(part.rows for part in self._own))]
        self._trained = torch.empty(0, requires_grad=True)

    def sizes(self) -> dict[str, tuple[Any, ...]]:
        """Return rows, columns and lookups of all ranks' samples for each table."""
        ranks = self.process_group.size()
        return {
            "rows": tuple(part.rows for part in self._own),
            "columns": tuple(part.columns for part in self._own),
            "lookups": tuple(part.indices * ranks for part in self._own),
        }

    def pooled_splits(self) -> tuple[list[int], list[int]]:
        """Return the elements sent to and received from each rank."""
        sent = [self._samples_bags * self.width] * len(self._widths)
        return sent, [self._samples_bags * width for width in self._widths]

    def _index_counts(self) -> list[int]:
        """Return the indices sent to each rank."""
        return [math.ceil(sum(part.indices for part in own)) for own in self._parts]

    def _length_counts(self) -> list[int]:
        """Return the bags sent to each rank."""
        return [len(own) * self._samples_bags for own in self._parts]

    def start(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the lengths of bags and the indices in the order of their target ranks."""
        parts = self._own if self._is_by_rows else [part for own in self._parts for part in own]
        uses = [self._table_uses[part.use] for part in parts]
        values = torch.cat([use.indices for use in uses])
        bounds = [use.bounds.reshape(-1) for use in uses]
        lengths = torch.cat([each[: self._samples_bags] for each in bounds])
        if not self._is_by_rows:
            return lengths, values
        # The indices of each bag are sorted by the rank that owns the row.
        with self.recorder.blank():
            found = lengths.new_empty(sum(self._length_counts()))
            moved = values.new_empty(sum(self._index_counts()))
        given = {"lengths": lengths, "indices": values}
        name = "fbgemm::block_bucketize_sparse_features"
        self.recorder.write(name, "default", given, (found, moved))
        return found, moved

    def finish(self, lengths: torch.Tensor, values: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        """Exchange and look up indices; return the outputs of each use, split by columns."""
        received = []
        for tensor, sent in ((lengths, self._length_counts()), (values, self._index_counts())):
            splits = [sent[self.process_group.rank()]] * len(sent)
            with self.recorder.blank():
                out = tensor.new_empty(sum(splits))
            dist.all_to_all_single(
                out, tensor, splits, sent, group=self.process_group, async_op=True
            )
            received.append(out)
        offsets, indices = self._by_table(*received)
        pooled = _Fused.apply(self, indices, offsets, self._trained)
        if self._is_by_rows:
            out, parts = _SumsToSamples.apply(self, pooled), self._own
        else:
            bags = self._samples_bags
            blocks = _PooledToSamples.apply(self, pooled).split([bags * w for w in self._widths])
            out = torch.cat([block.view(bags, -1) for block in blocks if block.numel()], dim=1)
            parts = [part for own in self._parts for part in own]
        columns = out.split([part.columns for part in parts], dim=1)
        return [(part.use, rows) for part, rows in zip(parts, columns, strict=True)]

    def _by_table(
        self, lengths: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Reorder lengths and indices from ranks to tables and return offsets and indices."""
        write = self.recorder.write
        with self.recorder.blank():
            ordered = lengths.new_empty(lengths.shape), values.new_empty(values.shape)
            offsets = lengths.new_empty(lengths.numel() + 1)
        if not self._own:
            return offsets, ordered[1]
        given = {"lengths": lengths, "values": values}
        write("fbgemm::permute_2D_sparse_data", "default", given, ordered)
        name = "fbgemm::asynchronous_complete_cumsum"
        write(name, "default", {"t_in": ordered[0]}, (offsets,))
        given = {"indices": ordered[1], "offsets": offsets}
        write("fbgemm::bounds_check_indices", "default", given, (offsets,))
        return offsets, ordered[1]


# ------------------------------------------------------------------------------- the model


class _SharedTables:
    """Replaces a model's tables by lookups on all ranks; see Note [A step]."""

    def __init__(
        self, uses: Sequence[_TableUse], groups: Sequence[_SharedGroup], recorder: Recorder
    ) -> None:
        self._table_uses, self._groups, self._recorder = uses, groups, recorder
        self._found: dict[int, torch.Tensor] = {}
        self._turns: dict[nn.Module, Iterator[int]] = {}

    def begin(self, *_: Any) -> None:
        """Begin a forward pass."""
        self._found.clear()
        uses: dict[nn.Module, list[int]] = defaultdict(list)
        for index, use in enumerate(self._table_uses):
            uses[use.module].append(index)
        self._turns = {module: iter(own) for module, own in uses.items()}

    def answer(self, module: nn.Module, *_: Any, **__: Any) -> torch.Tensor:
        """Replace a table's forward."""
        use = next(self._turns[module])
        if use not in self._found:
            self._look_up()
        return self._found[use].reshape(self._table_uses[use].shape)

    def _look_up(self) -> None:
        started = [group.start() for group in self._groups]
        self._exchange_sizes()
        parts: dict[int, list[torch.Tensor]] = defaultdict(list)
        for group, (lengths, values) in zip(self._groups, started, strict=True):
            for use, rows in group.finish(lengths, values):
                parts[use].append(rows)
        for use, own in parts.items():
            self._found[use] = own[0] if len(own) == 1 else torch.cat(own, dim=1)

    def _exchange_sizes(self) -> None:
        """Exchange lengths, indices and samples of each group, for which the host waits."""
        process_group = self._groups[0].process_group
        count = 3 * len(self._groups) * process_group.size()
        with self._recorder.blank():
            sizes, out = (torch.empty(count, dtype=torch.int64) for _ in range(2))
        dist.all_to_all_single(out, sizes, group=process_group, async_op=True)
        out.tolist()


def run_shared_tables(
    workload: Workload,
    placement: Placement,
    process_group: dist.ProcessGroup,
    recorder: Recorder,
    *,
    finds_unused: bool = False,
) -> nn.Module:
    """Run steps of the current rank, see `run_step`.

    Args:
        workload: Workload of each rank; its model is changed.
        placement: Placement of the tables.
        process_group: All ranks.
        recorder: Recorder of the calls.
        finds_unused: See `wrap_ddp`.

    Raises:
        OptionError: A table can't be shared.
    """
    for note in placement.notes:
        recorder.note(note)
    workload.model.train(workload.loss is not None)
    with recorder.paused():
        uses = _table_uses(workload)
    optimizer = table_optimizer(workload) if workload.loss else "sgd"
    if workload.optimizer is not None and optimizer == _DEFAULT_OPTIMIZER:
        recorder.note("tables are updated by row-wise Adagrad")
    groups = [
        _SharedGroup(key, parts, uses, process_group, recorder, optimizer)
        for key, parts in _grouped_parts(uses, placement).items()
    ]
    shared = _SharedTables(uses, groups, recorder)
    with recorder.paused():
        for use in uses:
            if use.lookup.table in placement.copied:
                continue
            # The weight is no parameter any more but keeps shape and type.
            weight = use.module._parameters.pop("weight", None)
            if weight is not None:  # else the table is used more than once
                use.module.weight = weight.detach()
                use.module.forward = partial(shared.answer, use.module)
    if groups:
        workload.model.register_forward_pre_hook(shared.begin)
    steps = None
    if not any(parameter.requires_grad for parameter in workload.model.parameters()):
        workload = replace(workload, optimizer=None)  # there are tables and nothing else
    elif workload.loss is not None:
        workload = wrap_ddp(workload, process_group, finds_unused=finds_unused)
        steps = DDP_STEPS
    if groups:
        # An optimizer that holds the state of the tables, which lookups update.
        keeper = torch.optim.SGD([group.weights for group in groups])
        for group in groups:
            keeper.state[group.weights] = dict(enumerate(group.state))
        recorder.add_optimizer(keeper)
    return nn.ModuleList([run_step(workload, recorder, steps=steps), nn.ModuleList(groups)])
