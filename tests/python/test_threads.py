"""Several ranks at the same time: the order of items, errors, the same tables on any threads."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Barrier, get_ident

import pytest

import torchtraceap as ttap
from torchtraceap import loading, ranks
from torchtraceap.threads import core_count, map_on_threads


def test_results_come_in_the_order_of_the_items() -> None:
    assert map_on_threads(lambda n: n * n, range(50), threads=4) == [n * n for n in range(50)]
    assert map_on_threads(str, [], threads=4) == []


def test_items_run_at_the_same_time() -> None:
    together = Barrier(3, timeout=30)  # passes only if three threads wait at it
    assert len(map_on_threads(lambda _: together.wait(), range(3), threads=3)) == 3


def test_one_thread_is_the_callers_own() -> None:
    assert map_on_threads(lambda _: get_ident(), range(3), threads=1) == [get_ident()] * 3
    assert core_count() >= 1


def test_the_first_error_by_item_is_raised() -> None:
    def fail(n: int) -> int:
        if n % 2:
            raise ValueError(n)
        return n

    with pytest.raises(ValueError, match="1"):
        map_on_threads(fail, range(6), threads=3)


@pytest.fixture
def folder(bundled: Path, tmp_path: Path) -> Path:
    """Three files of the same rank's events."""
    for rank in range(3):
        shutil.copy(bundled, tmp_path / f"rank{rank}.json.gz")
    return tmp_path


@pytest.mark.parametrize("table", ["ops", "kernels", "roofline", "host", "memory", "steps"])
def test_tables_are_those_of_one_thread(
    folder: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = getattr(ttap.load(folder), table)()
    monkeypatch.setattr(loading, "core_count", lambda: 1)
    for module in (loading, ranks):
        monkeypatch.setattr(module, "map_on_threads", lambda f, items, threads=0: [*map(f, items)])
    one = getattr(ttap.load(folder), table)()
    assert many.to_dict() == one.to_dict()


def test_a_value_is_computed_once_for_its_key(bundled: Path) -> None:
    rank = ttap.load(bundled).ranks[0]
    assert rank.idle(None) is rank.idle(None)
    assert rank.idle(rank.tree.profiled) is not rank.idle(None)
    assert rank.remember("k", lambda: 1) == rank.remember("k", lambda: 2) == 1
