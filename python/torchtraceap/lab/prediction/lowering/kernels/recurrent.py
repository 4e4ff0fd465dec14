"""Kernels of recurrent layers; see Note [Steps of a recurrent layer] in lowering/recurrent.py."""

from __future__ import annotations

from collections.abc import Sequence

from torchtraceap.lab.prediction.lowering.kernels.launch import (
    Launch,
    Rule,
    Setting,
    ceil_div,
    opmath_name,
)
from torchtraceap.lab.prediction.lowering.launching_op import LaunchingOp
from torchtraceap.lab.prediction.lowering.recurrent import RECURRENT, Recurrent, recurrent_of

__all__ = ["RULES"]

_KINDS = {2: "LSTM", 3: "GRU"}
_TYPES = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float64": "double"}
_TILE = 128


def _layers(op: LaunchingOp, setting: Setting) -> Sequence[Launch]:
    """Launch all kernels of the operator, layer by layer."""
    of = recurrent_of(op)
    if of is None:
        return ()
    gated, rows = of.gates * of.hidden, of.steps * of.batch
    at_once = [_product(setting, rows, gated)]
    if of.backward:
        sizes = ((rows, of.features), (gated, of.features), (gated, of.hidden))
        at_once = [_product(setting, m, n) for m, n in sizes]
    steps = [_walk(of, setting)]
    if not of.persistent(setting.device):
        steps = [_product(setting, of.batch, gated), _gates(of, setting)] * of.steps
    layer = [*steps, *at_once] if of.backward else [*at_once, *steps]
    return layer * of.layers * of.directions


def _product(setting: Setting, m: int, n: int) -> Launch:
    name = {7: "volta", 8: "ampere"}.get(setting.generation, "sm80_xmma")
    if setting.is_amd:
        return Launch(
            f"Cijk_Ailk_Bljk_SB_MT{_TILE}x{_TILE}x16", _tiles(m, n), (256, 1, 1), None, 128, 32768
        )
    return Launch(f"{name}_sgemm_{_TILE}x{_TILE}_tn", _tiles(m, n), (256, 1, 1), None, 122, 33792)


def _tiles(m: int, n: int) -> tuple[int, int, int]:
    return ceil_div(n, _TILE), ceil_div(m, _TILE), 1


def _gates(of: Recurrent, setting: Setting) -> Launch:
    kind, way = _KINDS.get(of.mode, "RNN"), "bp1" if of.backward else "fp"
    t, a = _TYPES.get(of.dtype.name, "float"), opmath_name(of.dtype)
    grid = (ceil_div(of.hidden * of.batch, 256), 1, 1)
    if setting.is_amd:
        return Launch(f"{kind}{'Bwd' if of.backward else 'Fwd'}HidUpdate", grid, (256, 1, 1))
    return Launch(f"void {kind}_elementWise_{way}<{t}, {t}, {a}>(int, int, int, int)", grid,
                  (256, 1, 1))  # fmt: skip


def _walk(of: Recurrent, setting: Setting) -> Launch:
    way = "bp" if of.backward else "fp"
    t, a = _TYPES.get(of.dtype.name, "float"), opmath_name(of.dtype)
    name = f"void RNN_blockPersist_{way}_{_KINDS.get(of.mode, 'RNN')}<{t}, {t}, {a}>(int, int)"
    grid = (min(setting.processors, ceil_div(of.hidden, 8)), 1, 1)
    return Launch(name, grid, (256, 1, 1), None, 168, 98304)


RULES: dict[str, Rule] = dict.fromkeys((name.removeprefix("aten::") for name in RECURRENT), _layers)
