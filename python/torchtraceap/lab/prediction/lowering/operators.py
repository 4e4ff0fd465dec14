"""Selects the operators that launch GPU work, the innermost ones in Kineto's terms.

Note [Innermost operators]: a captured call is often not the operator that launches the kernel:
`clone` launches in `copy_`, `embedding` in `index_select`. The rules follow ATen on a GPU, and none
is fitted to a trace. Operators without a rule launch under their own name, as most of ATen does: a
kernel registered for CUDA launches itself.
"""

from __future__ import annotations

from torchtraceap.lab.prediction.capture.calls import Capture, Value, tensors_in
from torchtraceap.lab.prediction.lowering import composite_rules, library_rules
from torchtraceap.lab.prediction.lowering.launching_op import (
    LaunchingOp,
    Libraries,
    Rule,
    launch_as,
    launch_itself,
    no_launch,
)

__all__ = ["launching_ops"]


_USUAL = Libraries()


def launching_ops(capture: Capture, libraries: Libraries = _USUAL) -> tuple[LaunchingOp, ...]:
    """Return the launching operators of a step in host order."""
    found: list[LaunchingOp] = []
    for index, call in enumerate(capture.calls):
        if call.is_view or call.on_host:
            continue
        rule = launch_itself if call.is_innermost else _RULES.get(call.name, launch_itself)
        for name, inputs, outputs in rule(call, libraries):
            if _makes_nothing(outputs):
                continue
            found.append(LaunchingOp(name, inputs, outputs, call.phase, call.modules, index))
    return tuple(found)


def _makes_nothing(outputs: tuple[Value, ...]) -> bool:
    """Return whether all outputs are empty, so that nothing is launched."""
    tensors = tuple(tensors_in(outputs))
    return bool(tensors) and not any(each.elements for each in tensors)


_SILENT = """empty empty_like empty_strided new_empty new_empty_strided empty_permuted _unsafe_view
detach lift_fresh resize_ set_ sym_size sym_stride sym_numel _reshape_alias is_same_size
unsafe_split unsafe_chunk unsafe_split_with_sizes
_sparse_coo_tensor_with_dims_and_tensors is_coalesced _coalesced_ _indices _values _nnz"""

_RULES: dict[str, Rule] = {
    **{f"aten::{name}": no_launch for name in _SILENT.split()},
    "profiler::_record_function_enter_new": no_launch,
    "profiler::_record_function_exit": no_launch,
    **library_rules.RULES,
    **composite_rules.RULES,
    "aten::index_put_": launch_as("aten::_index_put_impl_"),
    "aten::_unsafe_index": launch_as("aten::index"),
    "fsdp::split_with_sizes_copy": launch_as("aten::split_with_sizes_copy"),
    "fsdp::chunk_cat": launch_as("aten::_chunk_cat"),
}
