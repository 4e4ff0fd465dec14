"""Sparse gradients of embeddings, which have one row for each lookup.

Tensors without values lose the number of rows in a few operators, after which nothing would be
computed of them. The number of rows after equal ones are summed depends on values, so that all are
counted.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["with_sparse_rows"]

_BAG = torch.ops.aten._embedding_bag_backward.default
_COALESCE = torch.ops.aten._coalesce.default
_ROWS_OF = {
    torch.ops.aten.clone.default: 0,
    _COALESCE: 0,
    torch.ops.aten.sparse_mask.default: 1,
}
"""Argument with as many rows as the result, by operator."""


def with_sparse_rows(func: Any, args: tuple[Any, ...], found: Any) -> Any:
    """Return the result of an operator with the rows that it would have.

    Args:
        func: The operator.
        args: Its arguments by position.
        found: Its result.
    """
    if not isinstance(found, torch.Tensor) or found.layout != torch.sparse_coo or found._nnz():
        return found
    if func is _BAG:
        places = args[1].reshape(1, -1)
    elif func in _ROWS_OF:
        places = args[_ROWS_OF[func]]._indices()
    else:
        return found
    columns = found._values().shape[1:]
    values = found._values().new_empty((places.shape[1], *columns))
    made = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
        places.shape[0], len(columns), found.shape, places, values, layout=torch.sparse_coo,
        dtype=values.dtype, device=values.device, is_coalesced=func is _COALESCE,
    )  # fmt: skip
    assert isinstance(made, torch.Tensor)
    return made
