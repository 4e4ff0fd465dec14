"""Families of torch's own operators against the tags that torch gives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from torchtraceap.ops.models import family_of

torch = pytest.importorskip("torch", reason="needs torch for its tags")

BY_ELEMENT = {"elementwise", "activation", "dropout", "copy", "reduction"}
"""`max`, `equal`, `clone` and the like carry the tag and have families of their own."""
REDUCING = {"reduction", "scan", "linear_algebra"}


def tagged(tag: Any) -> Iterator[str]:
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = name.partition("::")
        packet = getattr(torch.ops.aten, rest.partition(".")[0], None)
        if namespace != "aten" or packet is None:
            continue
        overload = getattr(packet, rest.partition(".")[2] or "default", None)
        if overload is not None and tag in overload.tags:
            yield f"aten::{rest.partition('.')[0]}"


def test_pointwise_operators_work_by_element() -> None:
    families = {name: family_of(name) for name in tagged(torch.Tag.pointwise)}
    assert len(families) > 200
    assert {name: f for name, f in families.items() if f not in BY_ELEMENT} == {}


def test_reductions_are_reductions() -> None:
    if not hasattr(torch.Tag, "reduction"):
        pytest.skip("this torch does not tag reductions")
    families = {name: family_of(name) for name in tagged(torch.Tag.reduction)}
    assert len(families) > 15
    assert {name: family for name, family in families.items() if family not in REDUCING} == {}
