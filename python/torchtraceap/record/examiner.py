"""The child process that packs and examines a recording while the training goes on.

It reads what to do from a JSON file and writes what it found beside it. It runs at the lowest
priority, in a process group of its own, sees no GPU, and never imports torch.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtraceap.core.records import dataclass
from torchtraceap.core.stored import read_json
from torchtraceap.core.writing import drop_scratch, write_text
from torchtraceap.errors import TraceError
from torchtraceap.record.export import TraceNames, pack_trace
from torchtraceap.record.ranks import Run

if TYPE_CHECKING:
    from torchtraceap.core.results import Finding
    from torchtraceap.diagnosis.result import Diagnosis

__all__ = ["Examination", "findings_of"]

TASK, RESULT, SAID = "task.json", "result.json", "said.txt"
NICEST = 19
PROGRAM = f"""
import sys
sys.path.append(sys.argv.pop(1))
from {__spec__.name} import main
sys.exit(main(sys.argv[1]))
"""
MOST_SAID = 2000  # bytes of what a child that failed wrote


@dataclass(frozen=True, slots=True)
class Task:
    """The work of the child on a raw recording."""

    raw: str
    root: str
    """The folder that the training gave."""
    folder: str
    """The folder of the recording, below it."""
    rank: int
    size: int
    began: float
    """Begin of the recording, in seconds of `time.time()`."""
    timeout_s: float
    """To wait for the files of other ranks."""
    unfinished: str | None
    state: dict[str, Any] | None
    """Of the process while it was recorded."""
    diagnose: bool


class Examination:
    """A running child.

    Args:
        task: What it does.
        place: A folder of its own, in which it gets its task and leaves its result.
    """

    def __init__(self, task: Task, place: Path) -> None:
        self.place = place
        document = {name: getattr(task, name) for name in Task.__dataclass_fields__}
        (place / TASK).write_text(json.dumps(document), "utf-8")
        with (place / SAID).open("wb") as said:
            self._child = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    PROGRAM,
                    str(Path(__file__).resolve().parents[2]),
                    str(place / TASK),
                ],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={
                    **os.environ,
                    "CUDA_VISIBLE_DEVICES": "",
                    "HIP_VISIBLE_DEVICES": "",
                    "OMP_NUM_THREADS": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                },
                start_new_session=True,  # Ctrl-C ends the training, and the trace is packed
            )

    def is_over(self) -> bool:
        return self._child.poll() is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; return True if it came in that time."""
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def give_up(self) -> None:
        self._child.kill()
        self._child.wait()

    def result(self) -> dict[str, Any]:
        """Return what it found, with `error` where it failed, and remove its scratch."""
        try:
            found = read_json(self.place / RESULT)
        except (OSError, ValueError):
            code = self._child.returncode
            found = {"error": f"the examining process ended with {code}: {self._last_words()}"}
        drop_scratch(self.place)
        return found

    def _last_words(self) -> str:
        try:
            text = (self.place / SAID).read_bytes()[-MOST_SAID:].decode("utf-8", "replace").strip()
        except OSError:
            return "it said nothing"
        return text.splitlines()[-1] if text else "it said nothing"


# ------------------------------------------------------------------------------- in the child


def main(path: str) -> int:
    os.nice(NICEST)
    place = Path(path)
    task = Task(**json.loads(place.read_text("utf-8")))
    began = time.monotonic()
    try:
        found = examine(task)
    except (TraceError, OSError) as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    used = resource.getrusage(resource.RUSAGE_SELF)
    found["cpu_s"] = used.ru_utime + used.ru_stime
    found["wall_s"] = time.monotonic() - began
    write_text(place.with_name(RESULT), json.dumps(found, allow_nan=False))
    return 0


def examine(task: Task) -> dict[str, Any]:
    """Pack the recording; on rank 0 also diagnose it."""
    names = TraceNames(task.root, rank=task.rank, run=task.folder, always_folder=True)
    path = pack_trace(Path(task.raw), names, unfinished=task.unfinished, state=task.state)
    if path is None:
        return {"error": "the profiler recorded no operation"}
    found: dict[str, Any] = {"path": str(path)}
    Path(task.raw).unlink(missing_ok=True)
    if task.diagnose:
        run = Run(path.parent.name, task.rank, task.size, task.began)
        others = run.others_of(path, task.timeout_s)
        from torchtraceap.record.notices import analyse

        trace, diagnosis = analyse(path, others)
        found |= findings_of(diagnosis)
        found["ranks"] = len(trace.ranks)
    return found


def findings_of(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return what a row of the series keeps of a diagnosis; times in ns."""
    step = diagnosis.step
    with_gpu = diagnosis.summary.events.gpu > 0
    return {
        "recorded_step_ns": step.measured_ns if step else None,
        "busy_share": diagnosis.busy_share if with_gpu else None,
        "computes_on": diagnosis.computes_on,
        "bound_by": diagnosis.bound_by,
        "findings": [_finding_row(each, diagnosis) for each in diagnosis.findings],
    }


def _finding_row(finding: Finding, diagnosis: Diagnosis) -> dict[str, Any]:
    saving = finding.saving
    share = None
    if saving is not None:
        step = diagnosis.step
        whole = step.measured_ns if saving.per_step and step else diagnosis.profiled_ns
        share = saving.believed_ns / whole if whole else None
    return {
        "type": finding.type,
        "title": finding.title,
        "cost_ns": finding.cost_ns,
        "cost_share": finding.cost_share,
        "saving_ns": saving.believed_ns if saving else None,
        "saving_per_step": saving.per_step if saving else None,
        "saving_share": share,
    }
