"""Which traces of a watch stay: the latest, and those in which a finding was new."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

__all__ = ["Kept"]


class Kept:
    """The folders of the recordings of one run; what goes is removed file by file, and nothing
    that another program put there.

    Args:
        root: The folder of the run.
        latest: How many of the latest recordings stay, whatever was found.
        most_bytes: All of them together stay below this; the last one always stays.
    """

    def __init__(self, root: Path, latest: int, most_bytes: int) -> None:
        self._root = root
        self._latest = latest
        self._most_bytes = most_bytes
        self._folders: dict[str, bool] = {}
        """By age; whether a finding was new."""

    @property
    def names(self) -> list[str]:
        return list(self._folders)

    def add(self, name: str, is_new: bool) -> None:
        """A recording was examined; those that have to make room for it go."""
        self._folders[name] = is_new
        for each in self.names[: -self._latest]:
            if not self._folders[each]:
                self._remove(each)
        sizes = {each: self._bytes(each) for each in self._folders}
        for each in sorted(self.names[:-1], key=lambda each: self._folders[each]):
            if sum(sizes[each] for each in self._folders) <= self._most_bytes:
                break
            self._remove(each)

    def follow(self, names: Collection[str]) -> None:
        """Another rank keeps these: what else was written here goes too."""
        for each in [each for each in self._folders if each not in names]:
            self._remove(each)

    def note(self, name: str) -> None:
        """A recording of which another rank decides."""
        self._folders[name] = False

    def _remove(self, name: str) -> None:
        self._folders.pop(name)
        folder = self._root / name
        with contextlib.suppress(OSError):
            for file in folder.glob("*_rank*.json.gz"):
                file.unlink(missing_ok=True)
            folder.rmdir()

    def _bytes(self, name: str) -> int:
        with contextlib.suppress(OSError):
            return sum(file.stat().st_size for file in (self._root / name).iterdir())
        return 0
