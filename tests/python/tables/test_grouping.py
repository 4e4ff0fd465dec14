"""Groups of rows: the same numbers as pandas gives."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtraceap.tables.grouping import Groups, order_by

ROWS = st.lists(
    st.tuples(st.integers(-3, 3), st.integers(0, 2), st.integers(0, 10**12)), max_size=60
)


@given(rows=ROWS)
def test_statistics_are_those_of_pandas(rows: list[tuple[int, int, int]]) -> None:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    groups = Groups(table[:, 0], table[:, 1])
    frame = pd.DataFrame(table, columns=["a", "b", "v"])
    expected = frame.groupby(["a", "b"], sort=False)["v"]
    values = table[:, 2]
    assert groups.count.tolist() == expected.size().tolist()
    assert groups.sum(values).tolist() == expected.sum().tolist()
    assert groups.minimum(values).tolist() == expected.min().tolist()
    assert groups.maximum(values).tolist() == expected.max().tolist()
    assert groups.mean(values) == pytest.approx(expected.mean().to_numpy())
    assert groups.median(values) == pytest.approx(expected.median().to_numpy())
    assert groups.quantile(values, 0.95) == pytest.approx(expected.quantile(0.95).to_numpy())
    assert groups.std(values, ddof=1) == pytest.approx(expected.std().to_numpy(), nan_ok=True)


@given(rows=ROWS)
def test_groups_come_in_the_order_of_their_first_row(rows: list[tuple[int, int, int]]) -> None:
    key = np.array([row[0] for row in rows], dtype=np.int64)
    groups = Groups(key)
    assert (np.diff(groups.first) > 0).all()
    assert (key[groups.first][groups.index] == key).all()
    for group in range(len(groups)):
        assert groups.rows(group).tolist() == np.flatnonzero(groups.index == group).tolist()


def test_order_breaks_ties_by_the_next_key() -> None:
    first, second = np.array([1, 2, 2, 1]), np.array([9, 3, 1, 2])
    assert order_by(first, second, descending=[True]).tolist() == [2, 1, 3, 0]
