"""Corpora: built in parallel, resumed, never fatal, asked in SQL."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorder import Recorder

import torchtraceap as ttap
from torchtraceap.cli import main
from torchtraceap.corpus import Engine, Selection, build, compact, run_corpus_sql, status, update
from torchtraceap.corpus import verify as verify_corpus
from torchtraceap.corpus.analyse import Outcome, Task, analyse
from torchtraceap.corpus.executors import PoolExecutor
from torchtraceap.corpus.query import VIEWS
from torchtraceap.corpus.sources import is_remote, read_tag_table, tag_of
from torchtraceap.corpus.store import Store
from torchtraceap.errors import MissingFileError, OptionError, SchemaError

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

ONE = Engine(jobs=1)
TEAM = r"team=/(team\d)/"


def write(path: Path, number: int, *, slow: bool = False, rank: int | None = None) -> Path:
    """A run of four steps; a slow one waits for its loader."""
    recorder = Recorder(base=1.79e15 + number * 86_400e6)
    now = 0.0
    for step in range(4):
        wait = 3000.0 if slow else 5.0
        load = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        recorder.host("user_annotation", load, now, wait)
        recorder.host("user_annotation", f"ProfilerStep#{step}", now, wait + 500)
        for kernel in range(20):
            at = now + wait + kernel * 20
            recorder.host("cpu_op", "aten::mm", at - 1, 10)
            recorder.gpu(recorder.call(recorder.launch_name, at, 5), at + 8, 11.0)
        now += wait + 500
    if rank is not None:
        recorder.members["distributedInfo"] = {"rank": rank, "world_size": 2}
    return recorder.write(path)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight runs of nine files: every second one is slow, one has two ranks."""
    folder = tmp_path_factory.mktemp("traces")
    for number in range(7):
        write(folder / f"team{number % 2}" / f"run{number}.json.gz", number, slow=number % 2 == 1)
    for rank in range(2):
        write(folder / "team0" / "job" / f"rank{rank}.json.gz", 9, rank=rank)
    return folder


@pytest.fixture(scope="module")
def made(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "fleet"
    build(Selection((str(traces),), (TEAM,)), str(folder), engine=ONE)
    return folder


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    return list(run_corpus_sql(str(folder), query).rows())


def content(folder: Path) -> dict[str, list[str]]:
    """All rows that count, sorted."""
    tables = ("runs", "findings", "facts", "steps", "kernels", "collectives", "failures")
    return {t: sorted(map(repr, rows(folder, f"select * from {t} order by all"))) for t in tables}


def test_every_run_is_there_once(made: Path) -> None:
    assert rows(made, "select count(*), count(distinct run), sum(files) from runs") == [(8, 8, 9)]
    assert rows(made, "select team, count(*) from runs group by team order by team") == [
        ("team0", 5),
        ("team1", 3),
    ]
    assert rows(made, "select ranks, world_size from runs where files = 2") == [(2, 2)]
    assert rows(made, "select min(day), max(day) from runs") == [("2026-09-21", "2026-09-30")]
    assert rows(made, "from failures") == []


def test_packed_traces_are_enough(traces: Path, made: Path, tmp_path: Path) -> None:
    """A corpus of the same runs, of which only the columns were kept."""
    for file in traces.rglob("*.json.gz"):
        target = (
            tmp_path / "packed" / file.relative_to(traces).with_suffix("").with_suffix(".arrow")
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        assert main(["convert", str(file), str(target)]) == 0
    folder = tmp_path / "fleet"
    build(Selection((str(tmp_path / "packed"),), (TEAM,)), str(folder), engine=ONE)
    for query in (
        "select day, team, ranks, world_size, files, profiled_ns, headline from runs order by all",
        "select type, title, cost_ns, saving_ns from findings order by all",
        "from failures",
    ):
        assert rows(folder, query) == rows(made, query)


def test_rows_are_those_of_the_diagnosis(made: Path, traces: Path) -> None:
    path = traces / "team1" / "run1.json.gz"
    diagnosis = ttap.load(path).diagnose()
    found = rows(
        made,
        "select type, place, cost_ns, saving_ns, title, lost_gpu_hours * 3.6e12 / cost_ns "
        f"from costs where path = '{path}' order by place",
    )
    assert [row[:5] for row in found] == [
        (f.type, place, f.cost_ns, f.saving.believed_ns if f.saving else None, f.title)
        for place, f in enumerate(diagnosis.findings, 1)
    ]
    assert all(row[5] == pytest.approx(1) for row in found)
    (steps,) = rows(made, f"select count(*) from steps join runs using (run) where path = '{path}'")
    assert steps == (4,)


def test_other_tools_read_the_files(made: Path) -> None:
    from pyarrow import dataset

    runs = dataset.dataset(made / "runs", partitioning="hive").to_table()
    assert runs.num_rows == 8
    assert len(list((made / "runs").glob("day=*"))) == 8


def test_nothing_new_is_nothing_to_do(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(path.name for path in made.rglob("*"))
    monkeypatch.setattr("torchtraceap.corpus.builder.read_signs", None)  # no file is opened
    assert update(str(made)).new == 0
    assert sorted(path.name for path in made.rglob("*")) == before


def test_what_is_new_is_added_and_what_changed_replaced(traces: Path, tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "fleet"
    shutil.copytree(traces, source)
    build(Selection((str(source),)), str(folder), engine=ONE)
    write(source / "team0" / "run0.json.gz", 40, slow=True)
    write(source / "new.json.gz", 41)
    shutil.move(source / "team0" / "run2.json.gz", source / "moved.json.gz")
    built = update(str(folder), engine=ONE)
    assert (built.new, built.runs) == (2, 9)
    fresh = tmp_path / "fresh"
    build(Selection((str(source),)), str(fresh), engine=ONE)
    keep = "select run, findings, profiled_ns from runs order by all"
    assert rows(folder, keep) == rows(fresh, keep)


@pytest.mark.slow
def test_other_tags_and_another_version_are_analysed_anew(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, source = tmp_path / "fleet", str(traces / "team1")
    assert build(Selection((source,)), str(folder), engine=ONE).new == 3
    assert build(Selection((source,), (r"kind=(run)\d",)), str(folder), engine=ONE).new == 3
    assert rows(folder, "select distinct kind from runs") == [("run",)]
    monkeypatch.setattr("torchtraceap.corpus.sources.__version__", "99")
    assert update(str(folder), engine=ONE).new == 3
    assert rows(folder, "select count(*) from runs") == [(3,)]
    assert len(list((folder / "runs").rglob("*.parquet"))) == 9
    assert compact(str(folder))[1] < 30
    assert rows(folder, "select count(*) from runs") == [(3,)]
    assert len(list((folder / "runs").rglob("*.parquet"))) == 3
    assert verify_corpus(str(folder)) == []


def test_failures_are_rows_and_the_others_go_on(traces: Path, tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "fleet"
    shutil.copytree(traces / "team1", source)
    (source / "words.json").write_text("no trace at all")
    (source / "nested.json").write_text("[" * 4_000_000)
    (source / "empty.json.gz").write_bytes(b"")
    whole = (traces / "team0" / "run0.json.gz").read_bytes()
    (source / "cut.json.gz").write_bytes(whole[: len(whole) // 2])
    built = build(Selection((str(source),)), str(folder), engine=Engine(jobs=2))
    assert (built.runs, built.failed) == (4, 3)  # what is cut is read as far as it goes
    found = {Path(p).name: (c, m) for p, c, m in
             rows(folder, "select path, code, message from failures")}  # fmt: skip
    assert set(found) == {"words.json", "nested.json", "empty.json.gz"}
    assert all(code == "unreadable" and name in text for name, (code, text) in found.items())
    assert update(str(folder), engine=ONE).new == 0
    assert update(str(folder), engine=ONE, retry=True).new == 3
    assert rows(folder, "select count(*) from failures") == [(3,)]
    write(source / "words.json", 50)
    assert update(str(folder), engine=ONE).new == 1
    assert rows(folder, "select count(*) from failures") == [(2,)]


@pytest.mark.slow
def test_a_bomb_costs_its_own_run(traces: Path, tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "fleet"
    shutil.copytree(traces / "team1", source)
    event = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1},'
    bomb = gzip.compress(b'{"traceEvents":[' + event * 8_000_000, 1)
    (source / "bomb.json.gz").write_bytes(bomb)
    engine = Engine(jobs=1, max_memory=300 << 20)
    built = build(Selection((str(source),)), str(folder), engine=engine)
    assert (built.runs, built.failed) == (3, 1)
    ((code, exit_code),) = rows(folder, "select code, exit_code from failures")
    assert (code, exit_code) == ("memory", 137)
    small = Selection((str(source),), max_file=100_000)
    build(small, str(tmp_path / "other"), engine=ONE)
    ((code,),) = rows(tmp_path / "other", "select code from failures")
    assert code == "too_large"


def slow_or_deadly(task: Task) -> Outcome:
    if "slow" in task.paths[0]:
        time.sleep(60)
    if "deadly" in task.paths[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return analyse(task)


def test_a_crash_and_a_timeout_replace_the_worker(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = str(traces / "team0" / "run0.json.gz")
    tasks = [Task(f"{n:024x}", "", (path,), 1, 0) for n, path in
             enumerate([good, "/deadly", good, "/slow", good])]  # fmt: skip
    monkeypatch.setattr("torchtraceap.corpus.worker.analyse", slow_or_deadly)
    executor = PoolExecutor(1, seconds=1.5)
    executor._context = __import__("multiprocessing").get_context("fork")
    try:
        for task in tasks:
            executor.submit(task)
        outcomes = {outcome.task.run: outcome for outcome in executor.results()}
    finally:
        executor.close()
    codes = [outcomes[t.run].rows.get("failures", {}).get("code", ("s", [""]))[1] for t in tasks]
    assert codes == [[""], ["crashed"], [""], ["timeout"], [""]]
    assert "SIGKILL" in outcomes[tasks[1].run].rows["failures"]["message"][1][0]


def test_files_that_turn_out_to_be_two_runs_are_two(tmp_path: Path) -> None:
    """Silent files of one place and name whose heads look alike."""
    for number in range(2):
        write(tmp_path / "source" / f"t{number}.json.gz", 0)
        recorder = Recorder(base=1.79e15 + number * 2e6)
        recorder.steps(40, 100 + number, 30.0)
        recorder.write(tmp_path / "source" / f"t{number}.json.gz")
    task = Task("ab", "", tuple(map(str, sorted((tmp_path / "source").iterdir()))), 1, 0)
    outcome = analyse(task)
    assert len(outcome.rows["runs"]["run"][1]) in (1, 2)
    assert not outcome.failed


@pytest.mark.slow
def test_killed_builds_leave_whole_runs_or_nothing(traces: Path, tmp_path: Path) -> None:
    chance = random.Random(3)
    source, folder, clean = tmp_path / "source", tmp_path / "fleet", tmp_path / "clean"
    for number in range(40):
        write(source / f"team{number % 3}" / f"run{number}.json.gz", number, slow=number % 2 == 0)
    program = (
        "import sys; from torchtraceap.corpus import build as b, Selection, Engine\n"
        "import torchtraceap.corpus.builder as m; m.COMMIT_RUNS = 3\n"
        "if __name__ == '__main__': b(Selection((sys.argv[1],)), sys.argv[2], engine=Engine(2))"
    )
    script = tmp_path / "program.py"
    script.write_text(program)
    build(Selection((str(source),)), str(clean), engine=Engine(jobs=2))
    for _ in range(20):
        child = subprocess.Popen(
            [sys.executable, str(script), str(source), str(folder)], start_new_session=True
        )
        time.sleep(0.3 + chance.random() * 1.2)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if (folder / "manifest" / "corpus.json").exists():
            found = rows(folder, "select count(*), count(distinct run) from runs")
            assert found[0][0] == found[0][1]
            whole = "select count(*) from findings where run not in (select run from runs)"
            assert rows(folder, whole) == [(0,)]
    build(Selection((str(source),)), str(folder), engine=Engine(jobs=2))
    assert content(folder) == content(clean)
    assert verify_corpus(str(folder)) == []


@pytest.mark.slow
def test_two_builders_at_once_write_each_run_once(traces: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    command = [sys.executable, "-m", "torchtraceap", "corpus", "build", str(traces), str(folder)]
    children = [subprocess.Popen([*command, "--jobs", "1"]) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    assert rows(folder, "select count(*), count(distinct run) from runs") == [(8, 8)]
    assert verify_corpus(str(folder)) == []


def test_memory_of_fsspec_is_a_source(traces: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    for path in traces.rglob("*.json.gz"):
        store.pipe(f"/bucket/{path.relative_to(traces)}", path.read_bytes())
    folder = tmp_path / "fleet"
    built = build(Selection(("memory://bucket",)), str(folder))
    assert (built.files, built.runs, built.failed) == (9, 8, 0)
    assert rows(folder, "select ranks from runs where files = 2") == [(2,)]
    assert rows(folder, "select path from runs where files = 2")[0][0].startswith("memory://")
    assert update(str(folder)).new == 0


@pytest.mark.slow
def test_ray_gives_the_same_rows(traces: Path, made: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    folder = tmp_path / "fleet"
    build(Selection((str(traces),), (TEAM,)), str(folder), engine=Engine(ray="local"))
    assert content(folder) == content(made)


# ------------------------------------------------------------------------------ options


def test_ray_ends_what_takes_too_long(traces: Path, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    try:
        engine = Engine(ray="local", seconds=1e-6)
        build(Selection((str(traces),)), str(tmp_path / "fleet"), engine=engine)
    finally:
        ray.shutdown()
    assert rows(tmp_path / "fleet", "select distinct code, exit_code from failures") == [
        ("timeout", 124)
    ]


def test_selections_choose_runs(traces: Path, tmp_path: Path) -> None:
    half = build(Selection((str(traces),), sample=0.5), str(tmp_path / "half"), engine=ONE)
    assert half.runs + half.left_out == 8
    assert 0 < half.runs < 8
    again = build(Selection((str(traces),), sample=0.5), str(tmp_path / "again"), engine=ONE)
    assert again.runs == half.runs
    old = tmp_path / "old"
    shutil.copytree(traces / "team1", old)
    os.utime(old / "run1.json.gz", (1e9, 1e9))
    assert build(Selection((str(old),), since="2d"), str(tmp_path / "new"), engine=ONE).runs == 2
    assert build(Selection((f"{old}/*5*",)), str(tmp_path / "glob"), engine=ONE).runs == 1


@pytest.mark.parametrize("text", ["team", "=x", "a b=x", "team=(", "1=x"])
def test_a_tag_has_a_name_and_a_pattern(text: str) -> None:
    with pytest.raises(OptionError, match="--tag"):
        tag_of(text)


def test_tags_take_their_group_the_first_or_all() -> None:
    for text, value in [("a=x(?P<a>.)(.)", "1"), ("a=x.(.)", "2"), ("a=x.", "x1"), ("a=q", None)]:
        assert tag_of(text)[1]("/x12") == value
    assert is_remote("s3://a")
    assert not is_remote("/a:b")


def test_tags_come_from_a_table(traces: Path, tmp_path: Path) -> None:
    """The longest path counts; a changed row is analysed anew, the others are not."""
    table, folder = tmp_path / "tags.csv", tmp_path / "fleet"
    table.write_text("path,owner,gpu_hours\nteam0,ann,\nteam0/job,bob,8\nrun1.json.gz,eve,2\n")
    build(Selection((str(traces),), tag_table=str(table)), str(folder), engine=ONE)
    found = rows(
        folder, "select owner, count(*), round(max(gpu_hours)) from runs group by 1 order by 1"
    )
    assert found == [("ann", 4, 0), ("bob", 1, 8), ("eve", 1, 2), (None, 2, 0)]
    table.write_text(table.read_text().replace("eve,2", "eve,3"))
    assert update(str(folder), engine=ONE).new == 1
    assert rows(folder, "select max(gpu_hours) from runs where owner = 'eve'") == [(3.0,)]


@pytest.mark.parametrize(
    ("text", "why"),
    [("name,x\na,b\n", "a column path"), ("path,two words\na,b\n", "two words"), ("", "rows")],
)
def test_a_table_of_tags_has_paths_and_names(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "tags.csv").write_text(text)
    with pytest.raises(OptionError, match=why):
        read_tag_table(str(tmp_path / "tags.csv"))


def test_views_have_the_columns_that_are_documented(made: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/corpus.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in VIEWS)
    for name in ("ranks", "fact_places", "kernel_hours", "collective_speeds"):
        columns = run_corpus_sql(str(made), f"select * from {name} limit 0")
        assert [column for column in columns if f"`{column}`" not in page] == []
    queries = page.split("```sql\n")[1].split("```")[0]
    for query in queries.split(";\n"):
        if "release" not in query and query.strip():
            run_corpus_sql(str(made), query)


def test_weights_and_times_come_from_tags(traces: Path, tmp_path: Path) -> None:
    source = tmp_path / "2026-01-05_12h_x"
    shutil.copytree(traces / "team1", source)
    tags = (r"gpu_hours=_(\d+)h_", r"time=/(\d{4}-\d\d-\d\d)_")
    folder = tmp_path / "fleet"
    build(Selection((str(source),), tags), str(folder), engine=ONE)
    assert rows(folder, "select distinct gpu_hours, day from runs") == [(12.0, "2026-01-05")]


def test_wrong_use_is_told(traces: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        build(Selection((str(tmp_path / "nowhere"),)), str(tmp_path / "a"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(OptionError, match="is no corpus"):
        build(Selection((str(traces),)), str(tmp_path / "other"))
    with pytest.raises(OptionError, match="corpus build"):
        run_corpus_sql(str(tmp_path), "from runs")
    for since in ("soon", "xd"):
        with pytest.raises(OptionError, match="--since"):
            build(Selection((str(traces),), since=since), str(tmp_path / "b"))


@pytest.mark.parametrize(
    "query", ["copy runs to 'x'", "select * from read_text('/etc/passwd')", "from '/etc/passwd'"]
)
def test_a_query_reads_the_corpus_alone(made: Path, query: str) -> None:
    with pytest.raises(OptionError, match="SQL"):
        rows(made, query)


@pytest.mark.parametrize("name", ["../../x.parquet", "/etc/passwd", "runs/day=2026-01-01/x"])
def test_a_manifest_names_files_of_the_corpus_alone(made: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    path = next(path for path in (folder / "manifest").glob("0*.json"))
    entry = json.loads(path.read_text())
    entry["tables"]["runs"] = [name]
    path.write_text(json.dumps(entry))
    with pytest.raises(SchemaError, match="no file of a corpus"):
        Store(str(folder)).batches()


@pytest.mark.parametrize(
    "changed",
    [{"tables": {"runs": 5}}, {"tables": {"runs": "x"}}, {"runs": [5]}, {"runs": [{"run": "a"}]},
     {"runs": [{"run": [], "key": "k", "failed": False, "files": []}]},
     {"runs": [{"run": "a", "key": "k", "failed": False, "files": [["path"]]}]}],
)  # fmt: skip
def test_a_manifest_of_anything_else_is_refused(
    made: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    path = next(path for path in (folder / "manifest").glob("0*.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(SchemaError, match=path.name):
        Store(str(folder)).batches()


def test_damage_is_found(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    first, second = sorted((folder / "findings").rglob("*.parquet"))[:2]
    first.write_bytes(first.read_bytes()[:100])
    shutil.copy(second, second.with_name("00000001-00000000.parquet"))
    wrong = verify_corpus(str(folder))
    assert len(wrong) == 2
    assert "can't be read" in wrong[0]
    assert "no manifest names it" in wrong[1]
    assert main(["corpus", "verify", str(folder)]) == 1


def test_names_of_hostile_files_stay_names(traces: Path, tmp_path: Path) -> None:
    source = tmp_path / "it's; drop table runs --"
    name = "a'b\"; select 1 -- <script>.json.gz"
    source.mkdir()
    shutil.copy(traces / "team0" / "run0.json.gz", source / name)
    folder = tmp_path / "fl'eet"
    build(Selection((str(source),), (r"team=(a'b.*)\.json",)), str(folder), engine=ONE)
    ((path, team),) = rows(folder, "select path, team from runs")
    assert path == str(source / name)
    assert team == "a'b\"; select 1 -- <script>"


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    yield lambda: capsys.readouterr().out


@pytest.mark.slow
def test_the_commands(made: Path, traces: Path, tmp_path: Path, shown: Any) -> None:
    folder = str(tmp_path / "fleet")
    build_it = ["corpus", "build", str(traces), folder, "--tag", TEAM, "--jobs", "1"]
    assert main([*build_it, "--json"]) == 0
    assert json.loads(shown())["runs"] == 8
    assert main(build_it) == 0
    assert "8 runs of 9 files, 0 failed; 0 analyzed now" in shown()
    assert main(["corpus", "status", folder, "--json"]) == 0
    found = json.loads(shown())
    assert (found["runs"], found["new_files"], found["gone_files"]) == (8, 0, 0)
    assert found == status(folder)
    assert main(["corpus", "query", folder, "select count(*) n from runs", "--json"]) == 0
    assert json.loads(shown())["rows"] == [[8]]
    for action in ("update", "retry", "compact", "verify"):
        assert main(["corpus", action, folder]) == 0
    assert main(["corpus", "build", str(traces)]) == 2
    assert main(["corpus", "status", str(traces)]) == 2


def test_diagnose_names_the_corpus_for_a_folder_of_runs(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(traces / "team1")]) == 2
    assert f"3 files of 3 runs (several_jobs); give one of them: {traces}" in (
        error := capsys.readouterr().err
    )
    assert f"torchtraceap corpus build {traces / 'team1'} OUT" in error
