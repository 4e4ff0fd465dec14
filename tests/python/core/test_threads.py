"""Several ranks at the same time: the order of items, errors, the same tables on any threads."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from threading import Barrier, get_ident
from time import sleep

import pytest

import torchtraceap as ttap
from torchtraceap.core import threads
from torchtraceap.core.threads import MemoCache, core_count, map_on_threads
from torchtraceap.trace import loader as loading


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
    """Three files of nearly the same events: equal ones would be refused as ranks of one job."""
    document = json.loads(gzip.decompress(bundled.read_bytes()))
    events = document["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "Kernel" and event.get("dur")]
    for rank in range(3):
        for kernel in kernels[rank::3]:
            kernel["dur"] = max(1, kernel["dur"] - 1)
        written = gzip.compress(json.dumps(document).encode(), 1)
        (tmp_path / f"rank{rank}.json.gz").write_bytes(written)
    return tmp_path


@pytest.mark.parametrize("table", ["ops", "kernels", "roofline", "host", "memory", "steps"])
def test_tables_are_those_of_one_thread(
    folder: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = getattr(ttap.load(folder), table)()
    monkeypatch.setattr(loading, "core_count", lambda: 1)
    for module in (loading, threads):
        monkeypatch.setattr(module, "map_on_threads", lambda f, items, threads=0: [*map(f, items)])
    one = getattr(ttap.load(folder), table)()
    assert many.to_dict() == one.to_dict()


def test_a_value_is_computed_once_for_its_key(bundled: Path) -> None:
    rank = ttap.load(bundled).ranks[0]
    assert rank.idle(None) is rank.idle(None)
    assert rank.idle(rank.tree.profiled) is not rank.idle(None)
    assert rank.cached("k", lambda: 1) == rank.cached("k", lambda: 2) == 1


def test_threads_that_ask_for_one_value_get_the_same_one() -> None:
    cached = MemoCache()
    together = Barrier(4, timeout=30)
    made: list[object] = []

    def compute() -> object:
        made.append(object())
        sleep(0.01)  # the others ask while this runs
        return made[-1]

    def ask(_: int) -> object:
        together.wait()
        return cached("value", compute)

    assert map_on_threads(ask, range(4), threads=4) == made * 4


def test_values_may_need_each_other_on_different_threads() -> None:
    first, second = MemoCache(), MemoCache()
    together = Barrier(2, timeout=30)

    def outer(mine: MemoCache, other: MemoCache) -> str:
        together.wait()  # both are being computed
        return mine("inner", lambda: "in") + other("inner", lambda: "in")

    def ask(index: int) -> str:
        mine, other = (first, second) if index else (second, first)
        return mine("outer", lambda: outer(mine, other))

    assert map_on_threads(ask, range(2), threads=2) == ["inin", "inin"]


def test_a_value_that_failed_is_computed_again() -> None:
    cached = MemoCache()
    with pytest.raises(ZeroDivisionError):
        cached("value", lambda: 1 // 0)
    assert cached("value", lambda: 2) == 2


def test_threads_that_share_a_rank_get_the_same_objects(bundled: Path) -> None:
    rank = ttap.load(bundled).ranks[0]
    together = Barrier(4, timeout=30)

    def objects(_: int) -> tuple[object, ...]:
        together.wait()
        return rank.tree, rank.costs, rank.idle(None)

    first, *others = map_on_threads(objects, range(4), threads=4)
    for other in others:
        assert all(a is b for a, b in zip(first, other, strict=True))
    assert rank.tree is first[0]
