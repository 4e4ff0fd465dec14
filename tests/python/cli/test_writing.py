"""Every file that is written: whole or as it was, and never one that was read."""

from __future__ import annotations

import ast
import csv
import errno
import fcntl
import gzip
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO, StringIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from gpu_traces import GpuTrace

import torchtraceap as ttap
from torchtraceap import _core, cli
from torchtraceap.cli.parser import Parser
from torchtraceap.compat.tracelens.sheets import write_csv
from torchtraceap.core import writing
from torchtraceap.core.columns import encode_texts
from torchtraceap.errors import OptionError, OutputError
from torchtraceap.record.export import TraceNames, export_trace

PACKAGE = Path(ttap.__file__).parent
OLD = b"what was there before\n"

CONTRACT = str(Path(__file__).parents[1] / "samples/contract.yaml")
# Every option of the command line that names a file to write, with a command that writes it.
# `test_every_output_option_has_a_writer_here` fails where one is missing.
COMMANDS: dict[str, tuple[str, ...]] = {
    "diagnose --html": ("diagnose", "{trace}", "--html", "{out}.html"),
    "report --html": ("report", "{trace}", "--html", "{out}.html"),
    "report --tracelens-csv": ("report", "{trace}", "--tracelens-csv", "{out}"),
    "report --tracelens-xlsx": ("report", "{trace}", "--tracelens-xlsx", "{out}.xlsx"),
    "check --junit": ("check", "{trace}", "--contract", CONTRACT, "--junit", "{out}.xml"),
    "check --sarif": ("check", "{trace}", "--contract", CONTRACT, "--sarif", "{out}.sarif"),
    "check --markdown": ("check", "{trace}", "--contract", CONTRACT, "--markdown", "{out}.md"),
    "doctor --bundle": ("doctor", "--trace", "{trace}", "--bundle", "{out}.json"),
    "diff --html": ("diff", "{trace}", "{trace}", "--html", "{out}.html"),
    "diff --tracelens-csv": ("diff", "{trace}", "{trace}", "--tracelens-csv", "{out}"),
    "convert OUT": ("convert", "{trace}", "{out}.json"),
    "convert OUT packed": ("convert", "{trace}", "{out}.json.gz"),
    "convert OUT columns": ("convert", "{trace}", "{out}.parquet"),
    "merge OUT": ("merge", "{trace}", "{out}.json"),
    "merge OUT packed": ("merge", "{trace}", "{out}.json.gz"),
    "annotate OUT": ("annotate", "{trace}", "{out}.json"),
    "annotate OUT perfetto": ("annotate", "{trace}", "{out}.pftrace"),
    "simulate --trace": ("simulate", "{trace}", "--trace", "{out}.json"),
    "simulate --trace packed": ("simulate", "{trace}", "--trace", "{out}.json.gz"),
    "predict --trace": ("predict", "{trace}", "--device", "H100-SXM", "--trace", "{out}.json"),
    "predict --html": ("predict", "{trace}", "--device", "H100-SXM", "--html", "{out}.html"),
    "replay --script": ("replay", "{trace}", "--op", "aten::mm", "--script", "{out}.py"),
    "--csv": ("events", "{trace}", "--csv", "{out}.csv"),
    "--csv packed": ("events", "{trace}", "--csv", "{out}.csv.gz"),
    "--parquet": ("events", "{trace}", "--parquet", "{out}.parquet"),
}
MODULES = {
    "convert OUT columns": "pyarrow",
    "--parquet": "pyarrow",
    "annotate OUT perfetto": "perfetto",
    "report --tracelens-xlsx": "openpyxl",
    "replay --script": "torch",
    "predict --trace": "torch",
    "predict --html": "torch",
}
# Folders that grow unit by unit (test_generation.py, test_training.py, test_collecting.py,
# test_datasets.py).
IN_PARTS = {
    "mcp --root",
    "report --tracelens-inference",
    "ci --out",
    "collect OUT",
    "dataset OUT",
    "evaluate --report",
    "generate OUT",
    "train OUT",
}

Writer = Callable[[Path, Path], tuple[list[str], Path]]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    made = GpuTrace()
    args = {
        "Input Dims": [[64, 64], [64, 64]],
        "Input type": ["float", "float"],
        "Input Strides": [[64, 1], [64, 1]],
        "Concrete Inputs": ["", ""],
    }
    for i in range(200):
        made.op("aten::mm", 100 * i, 50, **args)
        made.launch(f"gemm_{i}", (100 * i + 5, 5), (100 * i + 20, 30))
    (tmp_path / "in").mkdir()
    made.load(tmp_path / "in")
    return tmp_path / "in" / "trace.json"


@pytest.fixture(params=COMMANDS)
def writer(request: pytest.FixtureRequest) -> Writer:
    """Gives the words of a command, and the (first) file that it writes, for an input and a target
    without its suffix."""
    name: str = request.param
    if name in MODULES:
        pytest.importorskip(MODULES[name], reason=f"{MODULES[name]} is not installed")

    def command(trace: Path, out: Path) -> tuple[list[str], Path]:
        words = [word.format(trace=trace, out=out) for word in COMMANDS[name]]
        target = Path(words[-1])
        return words, target if target.suffix else target / "gpu_timeline.csv"

    return command


def sentence(code: int, error: str) -> str:
    assert code == 2, error
    assert len(error.splitlines()) == 1, error
    assert "Errno" not in error
    assert "partial" not in error
    return error


def refused(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    return sentence(cli.main(words), capsys.readouterr().err)


def in_process(words: Sequence[str], before: str = "") -> tuple[int, str]:
    """Exit code and standard error of a command in a process of its own, after some Python."""
    program = f"import sys\n{textwrap.dedent(before)}\n"
    program += "from torchtraceap.cli import main\nsys.exit(main(sys.argv[1:]))\n"
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stderr


FULL_DISK = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
"""


def test_what_fails_leaves_the_old_file_and_nothing_else(
    writer: Writer, trace: Path, tmp_path: Path
) -> None:
    words, target = writer(trace, tmp_path / "out" / "result")
    target.parent.mkdir(parents=True)
    target.write_bytes(OLD)
    error = sentence(*in_process(words, FULL_DISK))
    assert str(target.parent) in error
    assert "can't be written: File too large" in error
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert target.read_bytes() == OLD


def test_what_is_written_replaces_the_old_file_and_keeps_its_permissions(
    writer: Writer, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, target = writer(trace, tmp_path / "out" / "result")
    target.parent.mkdir(parents=True)
    target.write_bytes(OLD)
    target.chmod(0o604)
    assert cli.main(words) == 0, capsys.readouterr().err
    assert target.read_bytes() != OLD
    assert stat.S_IMODE(target.stat().st_mode) == 0o604
    assert not list(tmp_path.rglob(".*"))


def test_a_folder_is_named_that_is_missing_or_in_the_way(
    writer: Writer, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, target = writer(trace, tmp_path / "no" / "result")
    if target.name != "gpu_timeline.csv":  # a folder of tables is made
        assert f"the folder {target.parent} does not exist" in refused(capsys, words)
        assert not target.parent.exists()
    target.mkdir(parents=True)
    assert f"{target}: is a folder" in refused(capsys, words)
    assert [path for path in target.parent.rglob("*") if path != target] == []


@pytest.mark.parametrize("way", ["itself", "symbolic", "hard", "folder", "folder, symbolic"])
def test_no_command_writes_to_a_file_that_it_reads(
    writer: Writer, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    _, target = writer(trace, tmp_path / "out" / "result")
    target.parent.mkdir(parents=True)
    if way in ("itself", "folder"):
        trace = trace.rename(target)
    elif way == "hard":
        os.link(trace, target)
    else:
        target.symlink_to(trace)
    before = trace.read_bytes()
    words, _ = writer(trace.parent if "folder" in way else trace, tmp_path / "out" / "result")
    error = refused(capsys, words)
    assert f"{target}: this file was read, as {trace}" in error
    assert trace.read_bytes() == before
    assert not list(tmp_path.rglob(".*"))


def test_no_trace_is_written_among_the_ranks_that_are_read(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(trace.parent)
    for command in ("convert", "merge", "annotate", "simulate"):
        option = ["--trace"] if command == "simulate" else []
        error = refused(capsys, [command, folder, *option, f"{folder}/more.json.gz"])
        assert "one more rank" in error
    assert cli.main(["report", folder, "--html", f"{folder}/report.html"]) == 0


def output_options() -> Iterator[str]:
    for name, command in cli.COMMANDS.items():
        parser = Parser(prog=name)
        command.describe(parser)
        for action in parser._actions:
            if action.metavar == "OUT" and not action.option_strings:
                yield f"{name} OUT"
            elif action.option_strings and action.metavar in ("FILE", "DIR", "OUT"):
                yield f"{name} {action.option_strings[-1]}"


def test_every_output_option_has_a_writer_here() -> None:
    shared = {"--csv", "--parquet"}
    options = {
        option.split()[1] if option.split()[1] in shared else option for option in output_options()
    }
    written = {
        " ".join(name.split()[:2]) if not name.startswith("-") else name.split()[0]
        for name in COMMANDS
    }
    assert options - IN_PARTS == written


# ------------------------------------------------------------------------------ the owner


def test_a_killed_process_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "table.csv"
    target.write_bytes(OLD)
    program = f"""
        import os, signal
        from torchtraceap.core.writing import replacing_stream
        with replacing_stream({str(target)!r}) as stream:
            stream.write(b"half of it")
            stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    """
    code, _ = in_process([], program)
    assert code == -signal.SIGKILL
    assert target.read_bytes() == OLD
    (left,) = (path for path in tmp_path.iterdir() if path != target)
    assert left.name.startswith(".torchtraceap-")
    assert left.name.endswith(".partial")
    writing.write_text(target, "new")
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_only_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    (others / "kept").write_bytes(OLD)
    (tmp_path / ".torchtraceap-link.partial").symlink_to(others)
    (tmp_path / ".torchtraceap-file.partial").write_bytes(OLD)
    abandoned = tmp_path / ".torchtraceap-gone.partial"
    abandoned.mkdir()
    program = f"""
        import sys
        from torchtraceap.core.writing import make_scratch
        print(make_scratch({str(tmp_path)!r}), flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, encoding="utf-8") as process:
        assert process.stdout is not None
        held = Path(process.stdout.readline().strip())
        assert not abandoned.exists()
        assert held.is_dir()
        assert not writing.is_abandoned(held)
        writing.write_text(tmp_path / "new", "text")
        assert held.is_dir()
        process.kill()
    assert writing.is_abandoned(held)
    assert (others / "kept").read_bytes() == OLD
    assert (tmp_path / ".torchtraceap-link.partial").is_symlink()
    assert (tmp_path / ".torchtraceap-file.partial").read_bytes() == OLD


def test_a_file_system_without_locks_takes_files_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    left = tmp_path / ".torchtraceap-left.partial"
    left.mkdir()
    writing.write_text(tmp_path / "new", "text")
    assert left.is_dir()


def test_an_exception_or_an_interrupt_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_bytes(OLD)
    for error in (ValueError, KeyboardInterrupt, MemoryError):
        with pytest.raises(error), writing.replacing(target) as staged:
            staged.write_text("half of it")
            raise error
        assert target.read_bytes() == OLD
        assert list(tmp_path.iterdir()) == [target]


def test_permissions_of_a_new_file_are_those_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        writing.write_text(tmp_path / "new", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_the_file_behind_a_link_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    behind, link = tmp_path / "there" / "file", tmp_path / "link"
    for _ in range(2):  # the file is missing at first
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(behind, tmp_path))
        writing.write_text(link, "text")
        assert link.is_symlink()
        assert behind.read_text() == "text"
    link.unlink()
    link.symlink_to(link)
    with pytest.raises(OutputError, match=r"link: .*symbolic links"):
        writing.write_text(link, "text")


def test_what_is_no_file_is_written_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    writing.write_text(pipe, "text")
    reader.join()
    assert received == [b"text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    writing.write_text("/dev/null", "text")
    if Path("/dev/full").exists():
        with pytest.raises(OutputError, match="/dev/full: can't be written: No space left"):
            writing.write_text("/dev/full", "text")
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    target = tmp_path / "all.txt"
    target.write_bytes(OLD)
    program = f"""
        from torchtraceap.core.writing import write_text
        print("before")
        write_text({name!r}, "text\\n")
        print("after")
    """
    with target.open("ab") as stream:
        subprocess.run([sys.executable, "-c", textwrap.dedent(program)], stdout=stream, check=True)
    assert target.read_bytes() == OLD + b"before\ntext\nafter\n"


def test_several_files_appear_together_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "tables"

    def write(stream: BinaryIO) -> None:
        stream.write(b"text")

    def fail(stream: BinaryIO) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OutputError, match=r"tables/b/two\.csv: can't be written: No space left"):
        writing.write_files(folder, [("one.csv", write), ("b/two.csv", fail)])
    assert list(tmp_path.iterdir()) == []
    written = writing.write_files(folder, [("one.csv", write), ("b/two.csv", write)])
    assert written == [folder / "one.csv", folder / "b" / "two.csv"]
    assert sorted(p for p in folder.rglob("*") if p.is_file()) == sorted(written, key=str)[::1]
    with pytest.raises(OptionError, match=r"one\.csv: this file was read"):
        writing.write_files(folder, [("two", write), ("one.csv", write)], inputs=[written[0]])
    assert not (folder / "two").exists()
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a file, a folder is needed"):
        writing.write_files(tmp_path / "file" / "tables", [("one", write)])


def test_results_are_not_written_over_their_trace(trace: Path) -> None:
    loaded = ttap.load(trace)
    before = trace.read_bytes()
    for write in (loaded.diagnose().to_html, loaded.merge, loaded.annotate):
        with pytest.raises(OptionError, match="this file was read"):
            write(trace)
    with pytest.raises(OutputError, match="does not exist"):
        loaded.ops().to_csv(trace.parent / "no" / "ops.csv")
    assert trace.read_bytes() == before


class Recorder:
    """A profiler that exports a text, or part of it before the disk is full."""

    def __init__(self, text: str, *, fails: bool = False) -> None:
        self._text, self._fails = text, fails

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text(self._text, encoding="utf-8")
        if self._fails:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


RECORDED = '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "mm", "ts": 1, "dur": 1}]}\n'


def test_a_recording_is_whole_or_not_there(tmp_path: Path) -> None:
    names = TraceNames(tmp_path, rank=0, run="runs")
    for recorder, reason in (
        (Recorder(RECORDED[:40]), "wrote only a part"),
        (Recorder(RECORDED, fails=True), "can't be written: No space left"),
    ):
        with pytest.raises(OutputError, match=f"runs: .*{reason}"):
            export_trace(recorder, names)
        assert not (tmp_path / "runs").exists()
    kept = [export_trace(Recorder(RECORDED), names) for _ in range(2)]
    assert sorted((tmp_path / "runs").iterdir()) == kept
    assert [len(ttap.load(path).ranks[0].table) for path in kept if path] == [1, 1]


def test_an_interrupt_stops_the_core_while_it_writes(trace: Path) -> None:
    (part,) = ttap.load(trace).ranks
    target = trace.with_name("copy.json.gz")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            _core.write_trace(part.table, target, more_events=['"' + "x" * 1000 + '"'] * 100_000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with gzip.open(target) as file:
        assert not file.read().endswith(b"]}\n")


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1"]


@pytest.mark.parametrize("text", [*FORMULAS, "aten::mm", " =1", "'", "a=1", "", "1-2"])
def test_no_cell_for_a_spreadsheet_begins_a_formula(text: str, tmp_path: Path) -> None:
    table = ttap.ColumnTable({text or "name": encode_texts([text, None]), "ns": np.array([-5, 7])})
    wanted = f"'{text}" if text in FORMULAS else text
    for spreadsheet, cell in ((False, text), (True, wanted)):
        table.to_csv(tmp_path / "table.csv", spreadsheet=spreadsheet)
        with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as file:
            head, first, second = csv.reader(file)
        assert (head, first, second) == ([cell or "name", "ns"], [cell, "-5"], ["", "7"])
        stream = BytesIO()
        write_csv({text: [text, None], "n": [-5, 7]}, stream, spreadsheet=spreadsheet)
        rows = list(csv.reader(StringIO(stream.getvalue().decode("utf-8"), newline="")))
        assert rows == [[cell, "n"], [cell, "-5"], ["", "7"]]


def test_the_option_for_spreadsheets_needs_a_csv_file(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--csv" in refused(capsys, ["ops", str(trace), "--spreadsheet"])
    words = ["report", str(trace), "--html", str(tmp_path / "page.html"), "--spreadsheet"]
    assert "--tracelens-csv" in refused(capsys, words)


# What else opens files for writing: programs that make the package's own data.
PROGRAMS = {"core/knowledge/__main__.py", "ops/devices/__main__.py"}
# Calls that write, all of them to what the owner gave: a stream, a staged path.
GIVEN = {
    ("record/export.py", "packed.open('xb')"),
    ("record/export.py", "gzip.GzipFile('', 'wb', GZIP_LEVEL, target, mtime=0)"),
    ("core/table.py", "gzip.GzipFile('', 'wb', fileobj=file, mtime=0)"),
    ("cli/doctor.py", "open(os.devnull, 'wb')"),
    ("cli/tables.py", "kept.to_csv(options.csv, spreadsheet=options.spreadsheet)"),
    ("cli/tables.py", "kept.to_parquet(options.parquet)"),
    (
        "diagnosis/scoring/weight_files.py",
        "save(whole, {_ABOUT: json.dumps(about, sort_keys=True)})",
    ),  # bytes
    ("compat/tracelens/report.py", "book.save(stream)"),
    ("lab/training/loop.py", "learner.save(weights, fitted)"),
    (
        "compat/replay/script.py",
        "path.write_text(script, encoding='utf-8')",
    ),  # its own temporary folder
    # A program that is measured must not load the package; the file is there when it has ended.
    ("lab/bench/processes/injected/sitecustomize.py", "os.replace(growing, self.target)"),
    ("lab/bench/runs/child.py", "open('/proc/self/clear_refs', 'w', encoding='ascii')"),
    ("lab/bench/runs/run.py", "store.save(measure(asked, protocol, Path(folder)))"),
    ("lab/cli/bench/run.py", "open_store(options).save(replace(run, metrics=metrics))"),
    ("explanation/cache.py", "os.replace(self._path, aside)"),  # a damaged file out of the way
    # Staged by who calls it, or in its own temporary folder.
    (
        "contracts/recorder.py",
        "file.write_bytes(file.read_bytes().replace("
        "b'\"' + name + b'\"', b'\"' + renamed + b'\"'))",
    ),
    ("contracts/record.py", "gzip.GzipFile('', 'wb', 6, file, mtime=0)"),
    ("contracts/record.py", "shutil.copyfile(file, packed)"),
    ("contracts/record.py", "target.open('xb')"),
    # A copy of what is remote, in memory; the whole trace with its capture, in a temporary folder.
    ("corpus/sources.py", "open(descriptor, 'wb')"),
    ("corpus/store.py", "path.write_text(text, 'utf-8')"),  # staged by `write_paths`
    # What a watch and its child tell each other, in a hidden folder that goes when it has answered.
    ("record/examiner.py", "(place / SAID).open('wb')"),
    (
        "record/examiner.py",
        "(place / TASK).write_text(json.dumps(document), 'utf-8')",
    ),
}
CREATE = {"open", "fdopen", "GzipFile", "NamedTemporaryFile", "TemporaryFile"}
WRITE = {"write_bytes", "to_csv", "to_parquet", "to_excel", "savetxt", "tofile", "save", "savez"}
MOVE = {"replace", "rename", "mkstemp", "mkdtemp", "copyfile", "copy2", "copy", "move"}


def writes(call: ast.Call) -> bool:
    base, _, name = ast.unparse(call.func).rpartition(".")
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    texts = [a.value for a in given if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if name in CREATE:
        return any(set(text) & set("wax+") and set(text) <= set("rwaxbt+") for text in texts)
    if name == "write_text":
        return base != ""
    return name in WRITE or (name in MOVE and base in ("os", "shutil", "tempfile"))


def test_one_module_opens_files_for_writing() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), ast.unparse(node))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and writes(node)
    }
    assert {call for call in found if call[0] not in {*PROGRAMS, "core/writing.py"}} == GIVEN
