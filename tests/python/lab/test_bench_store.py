"""What is kept of runs, by content; and what a run says of the machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
from bench_samples import made_process, made_run

from torchtraceap.cli import main
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.bench.processes.environment import environment_hash, fingerprint
from torchtraceap.lab.bench.runs.run_store import Samples, Store, StoreError, default_folder

pytest.importorskip("pyarrow")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_run_comes_back_as_it_was_kept(store: Store, tmp_path: Path) -> None:
    trace = tmp_path / "some.json.gz"
    trace.write_bytes(b"a trace")
    made = made_run(
        processes=[made_process([10, 11, 12], [9, 9, 9]), made_process([20, 21, 22])],
        trace=trace,
        diagnosis={"findings": []},
    )
    kept = store.save(made)
    again = Store(store.folder).load(kept.id)
    assert again.to_dict() == kept.to_dict()
    assert (again.name, again.config_hash) == ("resnet", made.config_hash)
    assert again.metrics == made.metrics and again.counts == {"syncs": 0}
    assert again.diagnosis == {"findings": []}
    path = again.trace
    assert path and path.read_bytes() == b"a trace" and path.name.endswith(".json.gz")
    assert [times.tolist() for times in again.samples.of("fenced")] == [[10, 11, 12], [20, 21, 22]]
    assert [times.tolist() for times in again.samples.of("free")] == [[9, 9, 9], [20, 21, 22]]
    assert again.samples.step.tolist() == [0, 1, 2] * 4


def test_samples_are_parquet_with_five_columns(store: Store) -> None:
    from pyarrow import parquet

    kept = store.save(made_run())
    rows = parquet.read_table(store.path_of(kept.objects["samples"]))
    assert rows.column_names == ["run", "process", "mode", "step", "ns"]
    assert set(rows["run"].to_pylist()) == {"resnet"}
    assert rows.num_rows == 12


def test_no_samples_are_a_table_too(store: Store) -> None:
    kept = store.save(replace(made_run(), samples=Samples.of_processes([])))
    assert len(store.load(kept.id).samples) == 0


def test_what_was_run_names_a_configuration_and_how_often_does_not(store: Store) -> None:
    one = made_run()
    config = {**one.config, "protocol": {"processes": 9, "steps": 9, "warmup": 9}}
    assert replace(one, config=config).config_hash == one.config_hash
    assert made_run(compiled=True).config_hash != one.config_hash


def test_equal_contents_are_kept_once(store: Store) -> None:
    first = store.save(made_run())
    second = store.save(made_run(when="2026-01-02T00:00:00.000000+00:00"))
    assert first.id != second.id
    assert first.objects == second.objects
    assert len(list((store.folder / "objects").rglob("*.parquet"))) == 1
    assert store.save(made_run()).id == first.id  # the same run is the same file


def test_runs_are_found_by_id_name_and_configuration(store: Store) -> None:
    later = store.save(made_run(when="2026-01-02T00:00:00.000000+00:00"))
    first = store.save(made_run())
    other = store.save(made_run("vit"))
    assert [run.id for run in store.runs(name="resnet")] == [first.id, later.id]
    assert [run.id for run in store.runs(config_hash=other.config_hash)] == [other.id]
    assert store.load(first.id[:9]).id == first.id
    assert store.load("resnet").id == later.id
    with pytest.raises(OptionError, match="there is no run 'nothing'"):
        store.load("nothing")
    with pytest.raises(OptionError, match="there is no run ''"):
        store.load("")


def test_the_beginning_of_several_ids_is_refused(store: Store) -> None:
    ids = [store.save(made_run(when=f"2026-01-01T00:00:{n:02}")).id for n in range(17)]
    shared = next(a[:1] for a in ids if sum(b.startswith(a[:1]) for b in ids) > 1)
    with pytest.raises(OptionError, match="begins several runs"):
        store.load(shared)


def test_damage_is_named(store: Store) -> None:
    kept = store.save(made_run(diagnosis={"findings": []}))
    path = store.path_of(kept.objects["samples"])
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(StoreError, match=rf"{path.name}.*damaged"):
        Store(store.folder).load(kept.id).samples  # noqa: B018
    path.unlink()
    with pytest.raises(StoreError, match=r"object \w+ is missing"):
        Store(store.folder).load(kept.id).samples  # noqa: B018


def test_a_manifest_that_was_changed_is_named(store: Store) -> None:
    kept = store.save(made_run())
    place = store.folder / "runs" / f"{kept.id}.json"
    text = place.read_text()
    place.write_text(text.replace('"syncs": 0', '"syncs": 7'))
    with pytest.raises(StoreError, match=rf"{place.name}.*damaged"):
        store.runs()
    place.write_text("{")
    with pytest.raises(StoreError, match=rf"{place.name}.*manifest"):
        store.load("resnet")


def _save(folder: Path, number: int) -> str:
    return Store(folder).save(made_run(when=f"2026-01-01T00:00:0{number % 2}")).id


def test_several_processes_write_into_one_store(store: Store) -> None:
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        ids = set(pool.map(_save, [store.folder] * 12, range(12)))
    assert {run.id for run in store.runs()} == ids and len(ids) == 2
    assert all(len(run.samples) == 12 for run in store.runs())
    assert not list(store.folder.rglob("*.partial"))


def test_keeping_runs_needs_pyarrow(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"torchtraceap\[bench\]"):
        store.save(made_run())


def test_the_store_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTRACEAP_BENCH", "/some/where")
    assert default_folder() == Path("/some/where")
    monkeypatch.delenv("TORCHTRACEAP_BENCH")
    assert default_folder() == Path("ttap_bench")


def test_show_lists_and_describes(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    kept = store.save(made_run(diagnosis={"findings": [{"type": "cpu_bound"}]}))
    assert main(["bench", "show", "--store", str(store.folder)]) == 0
    assert kept.id in capsys.readouterr().out
    assert main(["bench", "show", kept.id[:8], "--store", str(store.folder)]) == 0
    said = capsys.readouterr().out
    assert "findings     cpu_bound" in said and "batch 4" in said
    assert main(["bench", "show", "resnet", "--store", str(store.folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "torchtraceap.bench/1"
    assert document["runs"][0]["id"] == kept.id
    assert main(["bench", "show", "nothing", "--store", str(store.folder)]) == 2
    assert "there is no run" in capsys.readouterr().err


# ------------------------------------------------------------------------- the environment


def test_the_machine_is_told_and_nobody_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", f"{Path.home()}/lib/libjemalloc.so.2:/opt/other.so")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SECRET_TOKEN", "confidential")
    found = fingerprint(tmp_path)
    assert found["variables"]["LD_PRELOAD"] == "libjemalloc.so.2:other.so"
    assert found["variables"]["OMP_NUM_THREADS"] == "3"
    assert found["cpu"]["cores"] == os.cpu_count() and found["memory_bytes"] > 1 << 28
    assert found["libraries"]["numpy"] and found["git"] is None
    text = json.dumps(found)
    private = ["confidential", str(tmp_path), str(Path.home()), socket.gethostname()]
    assert not [word for word in private if len(word) > 3 and word in text]


def test_the_fingerprint_imports_no_torch() -> None:
    code = (
        "import sys; from torchtraceap.lab.bench.processes.environment import fingerprint; "
        "f = fingerprint(); "
        "print('torch' in sys.modules, bool(f['torch']))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("False ")


NVIDIA_SMI = """#!/bin/sh
case "$1" in
  *driver_version*) echo "NVIDIA H100, 580.1, 81559 MiB"; echo "NVIDIA H100, 580.1, 81559 MiB" ;;
  *pstate*) for gpu in 0 1; do echo "P0, 1980 MHz, 2619 MHz, 31, 70.1 W, 0 %, 4 MiB"; done ;;
  *) echo "Field is not a valid field to query."; exit 2 ;;
esac
"""


def test_gpus_are_told_as_far_as_their_driver_knows_what_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(NVIDIA_SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = fingerprint(tmp_path)
    expected = {"name": "NVIDIA H100", "driver_version": "580.1", "memory.total": "81559 MiB"}
    assert found["gpus"] == [expected] * 2
    assert [gpu["clocks.sm"] for gpu in found["now"]["gpus"]] == ["1980 MHz"] * 2


def test_what_is_momentary_is_not_in_the_hash() -> None:
    one = {"cpu": {"model": "a"}, "now": {"load": [1.0]}}
    assert environment_hash({**one, "now": {"load": [9.0]}}) == environment_hash(one)
    assert environment_hash({**one, "cpu": {"model": "b"}}) != environment_hash(one)


def test_uncommitted_changes_are_told(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "first")
    clean = fingerprint(tmp_path)["git"]
    assert clean and not clean["dirty"] and len(clean["commit"]) == 40
    (tmp_path / "file").write_text("two")
    dirty = fingerprint(tmp_path)["git"]
    assert dirty["commit"] == clean["commit"] and dirty["dirty"] and dirty["changes"]
