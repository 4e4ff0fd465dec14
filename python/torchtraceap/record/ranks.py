"""The ranks of one recording: the folder on which they agree, and what all of them wrote there.

Note [Agreement]: a recording has a folder of its own, so that a folder is one run. Ranks agree on
its name by the key-value store that the launcher or `torch.distributed` keeps anyway: the first
one to come names the folder, the others read the name, and none waits for another. No collective
is called: a rank that does not record must not hold up the others. Where no store can be reached,
the job's number in the environment stands for it, and without one the ranks know nothing of each
other: each writes a folder of its own, and rank 0 reports on itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from torchtraceap.core.records import dataclass
from torchtraceap.errors import OptionError
from torchtraceap.record.notices import report_problem
from torchtraceap.record.torch_access import current_rank, world_size

__all__ = ["RANKS_TIMEOUT", "Board", "Run", "check_timeout", "run_of"]

RANKS_TIMEOUT = 60.0
"""Seconds that rank 0 waits for the files of the others: they write at the same step."""
STORE_S = 10.0
"""Seconds for an answer of the store."""
POLL_S = 0.1
SKEW_S = 5.0
"""Seconds by which the clock of a file system may be behind."""
MOST_NAMED = 8
"""Most missing ranks that a sentence names."""
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
# What a launcher calls one run, and what it says where it was given no name.
JOB_VARIABLES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_UNNAMED = ("", "none")


def check_timeout(seconds: float) -> None:
    """Raise OptionError unless it is a number of seconds to wait."""
    if not 0 <= seconds <= 86_400:
        raise OptionError(f"ranks_timeout must lie between 0 and 86400 seconds, not {seconds!r}")


@dataclass(frozen=True, slots=True)
class Run:
    """One recording of one or several ranks."""

    name: str
    """Name of its folder, unlike that of any other recording."""
    rank: int
    size: int
    """Ranks that are known to write to the folder of that name."""
    began: float
    """Begin of the recording here, in seconds of `time.time()`: older files are not of it."""

    def others_of(self, path: Path, timeout_s: float) -> list[Path]:
        """Return the files of the other ranks beside the one of rank 0, by rank.

        Those that don't come are told in a warning that names them: a rank may have died, and may
        write to another disk.

        Args:
            path: What rank 0 wrote.
            timeout_s: How long to wait for them.
        """
        wanted = range(1, self.size) if timeout_s else ()
        found: dict[int, Path] = {}
        end = time.monotonic() + timeout_s
        while len(found) < len(wanted):
            missing = (rank for rank in wanted if rank not in found)
            found |= {rank: file for rank in missing if (file := self._file_of(path, rank))}
            if time.monotonic() >= end:
                break
            time.sleep(POLL_S if len(found) < len(wanted) else 0)
        if left := [rank for rank in wanted if rank not in found]:
            named = ", ".join(map(str, left[:MOST_NAMED]))
            more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
            report_problem(
                f"no file of rank {named}{more} of {self.size} came to {path.parent} within "
                f"{timeout_s:g} s (a name that ends in _rank{left[0]}.json.gz); the others are "
                "diagnosed. A rank may have ended early or recorded nothing; ranks on other "
                "machines may write to other disks: bring the files together and run torchtraceap "
                "on the folder"
            )
        return [found[rank] for rank in sorted(found)]

    def _file_of(self, path: Path, rank: int) -> Path | None:
        """Return the newest complete file that a rank wrote in this run; an empty one is being
        written."""
        stem = ".*"
        if self.name not in path.parent.name:  # a file that was named: others lie beside it
            mine = path.name.partition(".json")[0]
            without_number = re.sub(r"_\d+$", "", mine)  # `x` of `x_2`
            stem = f"(?:{re.escape(mine)}|{re.escape(without_number)})"
        pattern = re.compile(rf"{stem}_rank{rank}(_\d+)?\.json(\.gz)?", re.IGNORECASE)
        newest: tuple[float, Path] | None = None
        for file, changed in _files_in(path.parent):
            if pattern.fullmatch(file.name) and changed >= self.began - SKEW_S:
                newest = max(newest or (changed, file), (changed, file))
        return newest[1] if newest else None


def _files_in(folder: Path) -> Iterator[tuple[Path, float]]:
    """Yield files that hold something, and when they changed."""
    with contextlib.suppress(OSError):
        for file in sorted(folder.iterdir()):
            with contextlib.suppress(OSError):
                status = file.stat()
                if status.st_size:
                    yield file, status.st_mtime


def run_of(torch: Any, what: str, began: float) -> Run:
    """Return the run of which a recording is part. See Note [Agreement].

    Args:
        torch: The module.
        what: Which recording of this process it is, equal on all ranks.
        began: When it was begun.
    """
    rank, size = current_rank(torch), world_size(torch)
    own = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    if size <= 1:
        return Run(own, rank, 1, began)
    agreed = _by_store(torch, what, own) or _by_job(what)
    return Run(agreed or f"{own}-rank{rank}", rank, size if agreed else 1, began)


def _by_store(torch: Any, what: str, own: str) -> str | None:
    """Return the name that the first rank to come gave; None where no store answers."""
    key = _key(what)
    for store in _stores(torch):
        with contextlib.suppress(Exception):
            said = store.compare_set(key, "", own)
            name = said.decode() if isinstance(said, bytes) else str(said)
            if re.fullmatch(r"[\w.-]{1,100}", name):
                return name
    return None


def _key(what: str) -> str:
    return f"torchtraceap/{os.environ.get(RESTARTS, '0')}/{what}"


class Board:
    """A board on which rank 0 tells the others what it decided; they meet at the same step, so
    none waits for longer than for the next collective. See Note [Agreement].

    Args:
        torch: The module.
        what: Whose decisions these are, equal on all ranks.
    """

    def __init__(self, torch: Any, what: str) -> None:
        self._torch = torch
        self._what = what
        self._store: Any = None

    def tell(self, name: str, text: str) -> bool:
        """Write as rank 0; return True if a store took it."""
        for store in self._reachable():
            with contextlib.suppress(Exception):
                store.set(_key(f"{self._what}/{name}"), text)
                self._store = store
                return True
        return False

    def ask(self, name: str, timeout_s: float = STORE_S) -> str | None:
        """Return what rank 0 wrote; None if it does not come in time."""
        key = _key(f"{self._what}/{name}")
        for store in self._reachable():
            with contextlib.suppress(Exception):
                store.wait([key], timedelta(seconds=timeout_s))
                said = store.get(key)
                self._store = store
                return said.decode() if isinstance(said, bytes) else str(said)
        return None

    def _reachable(self) -> Iterator[Any]:
        return iter([self._store]) if self._store is not None else _stores(self._torch)


def _stores(torch: Any) -> Iterator[Any]:
    """Yield the launcher's store, and that of the process group."""
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    limit = timedelta(seconds=STORE_S)
    if host and port.isdecimal():
        with contextlib.suppress(Exception):
            yield torch.distributed.TCPStore(
                host, int(port), None, False, timeout=limit, wait_for_workers=False
            )
    with contextlib.suppress(Exception):
        if torch.distributed.is_initialized():
            yield torch.distributed.distributed_c10d._get_default_store()


def _by_job(what: str) -> str | None:
    """Return the launcher's number of the job, and how often it was restarted; None without one."""
    for variable in JOB_VARIABLES:
        job = re.sub(r"[^\w.-]+", "_", os.environ.get(variable, ""))[:60]
        if job.lower() not in _UNNAMED:
            again = os.environ.get(RESTARTS, "0")
            return f"job-{job}-{again}-{re.sub(r'[^a-z0-9]+', '-', what)}"
    return None
