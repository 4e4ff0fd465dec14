"""Answers that were given before, and what servers take, in a file that only its user may read.

Note [Key]: the SHA-256 of what was asked, of the model and of the server. The file holds no prompt
and no key of a server. Complete answers alone are kept, good or bad: at temperature 0 the same
question would have the same answer.

Note [Trouble]: a cache is never a reason to fail. A file that is damaged is put aside under its
name with ".damaged" behind it; one that can't be used for another reason is left alone. Both are
told, and the run goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchtraceap.core.stored import parse_json
from torchtraceap.explanation.completions import Dialect, Question
from torchtraceap.explanation.language_model import Reply, ToolCall
from torchtraceap.explanation.settings import ModelSettings

__all__ = ["Cache", "question_key"]

_SCHEMA_VERSION = 1
"""Version of the stored answers; answers of other versions are not found."""
_DIALECT_S = 7 * 86400
"""Seconds for which a stored dialect is used, since servers are updated."""
_WAIT_S = 10.0
"""Seconds to wait for other processes."""
_TABLES = (
    "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply TEXT NOT NULL,"
    " prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, made_s REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS dialects (server TEXT PRIMARY KEY, dialect TEXT NOT NULL,"
    " made_s REAL NOT NULL)",
)

_Row = tuple[Any, ...]


def question_key(question: Question, settings: ModelSettings) -> str:
    """Return a hash that differs for every question; it is the same in every dialect."""
    asked = {
        "version": _SCHEMA_VERSION,
        "base_url": settings.base_url,
        "model": settings.model,
        "seed": settings.seed,
        "max_answer_tokens": settings.max_answer_tokens,
        **question.to_dict(),
    }
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Cache:
    """The file of some settings. Several processes may use it at once."""

    def __init__(self, settings: ModelSettings) -> None:
        self._path = settings.cache_path
        self._reads = settings.cache != "off"
        self._writes = settings.cache == "write"
        self._server = f"{settings.model} {settings.base_url}"
        self.problems: list[str] = []

    def reply(self, key: str) -> Reply | None:
        """Return the stored reply to a question, or None."""
        row = self._read("SELECT reply FROM replies WHERE key = ?", (key,))
        return _reply_of(row[0]) if row else None

    def keep(self, key: str, reply: Reply, tokens: tuple[int, int]) -> None:
        """Keep an answer.

        Args:
            key: The result of `question_key`.
            reply: Complete.
            tokens: Tokens of the prompt and of the answer.
        """
        calls = [[call.id, call.name, call.arguments] for call in reply.calls]
        text = json.dumps({"text": reply.text, "finish": reply.finish, "calls": calls})
        self._write(
            "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?, ?)",
            (key, text, *tokens, time.time()),
        )

    def dialect(self) -> Dialect | None:
        """Return the dialect that the server accepted lately, or None."""
        row = self._read("SELECT dialect, made_s FROM dialects WHERE server = ?", (self._server,))
        if row is None or not isinstance(row[0], str) or not isinstance(row[1], float):
            return None
        return Dialect.from_json(row[0]) if 0 <= time.time() - row[1] < _DIALECT_S else None

    def keep_dialect(self, dialect: Dialect) -> None:
        row = (self._server, dialect.to_json(), time.time())
        self._write("INSERT OR REPLACE INTO dialects VALUES (?, ?, ?)", row)

    def _read(self, query: str, values: Sequence[Any]) -> _Row | None:
        readable = self._reads and self._path.is_file()
        return self._run_query(query, values) if readable else None

    def _write(self, query: str, values: Sequence[Any]) -> None:
        if self._writes:
            self._run_query(query, values)

    def _run_query_once(self, query: str, values: Sequence[Any]) -> _Row | None:
        """Run a query and return its first row; a cache that writes creates the file if it is
        absent."""
        uri = self._path.absolute().as_uri()
        if self._writes:
            # A file that its user alone may read, before anything is in it.
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Not through a link, which somebody else may have put there.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._path, flags, 0o600)
            try:
                if os.fstat(descriptor).st_mode & 0o077:
                    os.fchmod(descriptor, 0o600)
            finally:
                os.close(descriptor)
        else:
            uri += "?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, timeout=_WAIT_S, uri=True)) as file:
            with file:  # one transaction
                for table in _TABLES if self._writes else ():
                    file.execute(table)
                row: _Row | None = file.execute(query, values).fetchone()
            return row

    def _run_query(self, query: str, values: Sequence[Any]) -> _Row | None:
        """Run a query; return its row, or None after noting a problem. See Note [Trouble]."""
        found = _identity(self._path)
        try:
            return self._run_query_once(query, values)
        except (OSError, sqlite3.Error) as error:
            # SQLite has no class of its own for damaged content.
            if type(error) is not sqlite3.DatabaseError or not self._writes:
                self._give_up(error)
                return None
        try:
            self._put_aside(found)
            return self._run_query_once(query, values)
        except (OSError, sqlite3.Error) as error:
            self._give_up(error)
            return None

    def _put_aside(self, found: tuple[int, int] | None) -> None:
        if _identity(self._path) != found:
            return  # another process has done it
        aside = self._path.with_name(f"{self._path.name}.damaged")
        os.replace(self._path, aside)
        # The rest of an interrupted change would be applied to the new file.
        journal = self._path.with_name(f"{self._path.name}-journal")
        journal.unlink(missing_ok=True)
        self.problems.append(
            f"the cache {self._path} was damaged: it is {aside.name} now, and begins anew"
        )

    def _give_up(self, error: Exception) -> None:
        self._reads = self._writes = False
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        self.problems.append(f"the cache {self._path} can't be used: {reason}")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _reply_of(text: Any) -> Reply | None:
    """Parse a stored reply; return None if it is not what `keep` wrote."""
    try:
        known = parse_json(text, "a stored reply")
        calls = tuple(ToolCall(*map(str, call)) for call in known["calls"])
        return Reply(str(known["text"]), str(known["finish"]), calls)
    except (ValueError, TypeError, KeyError):
        return None
