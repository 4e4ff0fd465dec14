"""Revisions of a project that can run side by side: git commits and package versions.

Note [Nothing of the user's changes]: commits are checked out as git worktrees in a scratch folder,
so neither the working tree nor the index nor a branch is touched, and no hook runs. The scratch
folder and what git remembers of its worktrees are gone at the end, however that comes (Note
[Cleaner]).

Note [Words of the user]: revisions and versions are words that others may have written. Git gets
them behind `--end-of-options` and answers with a hash, which is all that is passed on; nothing
goes through a shell.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from torchtraceap.core import (
    PathLike,
    dataclass,
    drop_scratch,
    is_abandoned,
    text_lines,
    write_text,
)
from torchtraceap.errors import MissingDependencyError, OptionError
from torchtraceap.lab.bench.processes.cleaner import Cleaner, cleaning, marked, working_folder
from torchtraceap.lab.bench.processes.programs import run_fresh

__all__ = [
    "REPOSITORY_VARIABLES",
    "Checkouts",
    "Installs",
    "Place",
    "Places",
    "Repository",
    "Revision",
    "Source",
    "TimedOutError",
    "UnusableRevisionError",
    "package_versions",
]

GIT_TIMEOUT_S = 600
"""Time limit of one git command; a checkout of a large repository takes minutes."""
INSTALL_TIMEOUT_S = 1800
REPOSITORY_VARIABLES = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
)
"""Variables that git sets for hooks and aliases and that a separate worktree must not inherit."""
_SCRATCH = re.compile(r"/\.torchtraceap-[^/]*\.partial/")


class UnusableRevisionError(OptionError):
    """A revision cannot be checked out, installed or built; others may still work."""


class TimedOutError(UnusableRevisionError):
    """A revision runs longer than it may."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit or a package version."""

    id: str
    """The full hash of a commit, or a version."""
    title: str = ""
    """The first line of the commit's message."""
    when: str = ""
    """The date of the commit, ISO 8601."""

    @property
    def short(self) -> str:
        """Ten digits of a hash, or the version."""
        return self.id[:10] if _HASH.fullmatch(self.id) else self.id


_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True, slots=True)
class Place:
    """The folder, variables and interpreter with which programs of a revision run."""

    folder: Path | None
    """The working directory; None means the caller's."""
    env: Mapping[str, str]
    """Environment variables that differ from the caller's."""
    python: str | None = None
    """The interpreter that replaces ours."""

    def words(self, program: Sequence[str]) -> list[str]:
        """Return the program with its interpreter."""
        first, *rest = program
        named = Path(first).name in ("python", "python3") or first == sys.executable
        return [self.python, *rest] if self.python and named else [first, *rest]


class Places(Protocol):
    """Interface of an object that prepares revisions to run, one by one."""

    def ready(self, revision: Revision) -> Place:
        """Prepare a revision and return where it runs.

        Raises:
            UnusableRevisionError: It can't be made.
        """

    def drop(self, revision: Revision) -> None:
        """Release what it takes; it can be made again."""


# ---------------------------------------------------------------------------------- git


class Repository:
    """A git repository, opened by any folder inside it."""

    def __init__(self, folder: PathLike = ".") -> None:
        """Open a folder of the repository; programs run in the same folder of each commit.

        Raises:
            OptionError: It is in none.
            MissingDependencyError: There is no git.
        """
        self._folder = Path(folder)
        if not self._folder.is_dir():
            raise OptionError(f"{folder}: is no folder")
        # The last line is the folder inside its repository, which may be empty.
        asked = ("rev-parse", "--show-toplevel", "--show-prefix")
        answer = self._git(*asked, what=f"{folder}: is in no git repository").split("\n")
        self.root = Path(answer[0])
        self.prefix = answer[1] if len(answer) > 1 else ""
        """The given folder below the root; empty, or ends with a slash."""

    def git_path(self, name: str) -> Path:
        """Return a place of ours among what git keeps."""
        answer = self._git("rev-parse", "--git-path", name, what="git rev-parse failed")
        return (self._folder / answer.rstrip("\n")).resolve()

    def commit(self, revision: str) -> Revision:
        """Return the commit that a name stands for.

        Raises:
            OptionError: There is none.
        """
        if not revision or "\0" in revision:
            raise OptionError("a revision needs a name")
        what = f"{revision}: is no commit of {self.root}"
        wanted = f"{revision}^{{commit}}"
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", wanted)
        found = self._git(*words, what=what).strip()
        if not _HASH.fullmatch(found):
            raise OptionError(what)
        return self._read_revisions([found])[0]

    def fork_of(self, base: Revision, head: Revision) -> Revision:
        """Return the commit from which two branches went apart.

        Raises:
            OptionError: They have none in common, or the clone lacks it.
        """
        what = (
            f"{base.short} and {head.short} have no commit in common; a shallow clone lacks it "
            "(fetch-depth: 0 clones all)"
        )
        return self.commit(self._git("merge-base", base.id, head.id, what=what).split("\n")[0])

    def range(self, text: str, *, first_parent: bool = True) -> list[Revision]:
        """Return the commits of `A..B`, A first and B last; B may be left out, which is HEAD.

        They are those on the main line of B, or else all that are in B, not in A, parents first.

        Raises:
            OptionError: It is no range, or A is not before B.
        """
        first, dots, last = text.partition("..")
        if not dots or not first or last.startswith("."):
            raise OptionError(f"{text}: a range is A..B, such as v1.0..HEAD")
        return self.between(self.commit(first), self.commit(last or "HEAD"), first_parent)

    def between(self, good: Revision, bad: Revision, first_parent: bool = True) -> list[Revision]:
        """Return the commits from one to another, as `range` does."""
        what = f"{good.short} is no ancestor of {bad.short}"
        self._git("merge-base", "--is-ancestor", good.id, bad.id, what=what)
        line = ["--first-parent"] if first_parent else ["--topo-order"]
        words = ("rev-list", "--reverse", *line, f"{good.id}..{bad.id}", "--")
        hashes = self._git(*words, what=what).split()
        if not hashes:
            raise OptionError(f"{good.short} and {bad.short} are the same commit")
        return [good, *self._read_revisions(hashes)]

    def _read_revisions(self, hashes: Sequence[str]) -> list[Revision]:
        told = self._git(
            "log",
            "--no-walk=unsorted",
            "--stdin",
            "--format=%H%x00%s%x00%cI",
            what="git log failed",
            given="".join(f"{each}\n" for each in hashes),
        )
        lines = (line.split("\0") for line in text_lines(told) if line.count("\0") == 2)
        known = {line[0]: Revision(line[0], line[1], line[2]) for line in lines}
        return [known[each] for each in hashes]

    @contextmanager
    def checkouts(self) -> Iterator[Checkouts]:
        """Yield worktrees of commits, which are gone at the end."""
        told = self._git("worktree", "list", "--porcelain", what="git worktree failed")
        for line in text_lines(told):  # those of processes of ours that were killed
            path = line.removeprefix("worktree ")
            is_ours = path != line and _SCRATCH.search(path)
            if is_ours and is_abandoned(Path(path).parent):
                self.forget(path)
                drop_scratch(Path(path).parent)
        environment = {k: v for k, v in os.environ.items() if k not in REPOSITORY_VARIABLES}
        with cleaning(environment) as cleaner, working_folder() as scratch:
            made = Checkouts(self, scratch, cleaner)
            try:
                yield made
            finally:
                made.close()

    def add(self, commit: str, path: Path) -> None:
        """Make a worktree of a commit.

        Raises:
            UnusableRevisionError: Git can't make it.
        """
        words = ("worktree", "add", "--quiet", "--detach", "--force", str(path), commit)
        self._git(*words, what=f"{commit[:10]}: can't be checked out", error=UnusableRevisionError)

    def complete(self, path: Path) -> list[str]:
        """Set up what git leaves out of a worktree, and return what could not be: submodules, from
        the repositories that the user's own checkout has, and files of Git LFS."""
        missing = []
        if (path / ".gitmodules").is_file():
            told = self._git(
                "config", "--file", str(path / ".gitmodules"), "--null", "--get-regexp",
                r"^submodule\..*\.path$", what="submodules can't be listed", check=False,
            )  # fmt: skip
            for entry in filter(None, told.split("\0")):
                key, _, place = entry.partition("\n")
                name = key.removeprefix("submodule.").removesuffix(".path")
                if (reason := self._add_submodule(path, name, place)) is not None:
                    missing.append(f"submodule {name}: {reason}")
        attributes = path / ".gitattributes"
        has_lfs = attributes.is_file() and b"filter=lfs" in attributes.read_bytes()
        if has_lfs and shutil.which("git-lfs") is None:
            missing.append("Git LFS is not installed: its files hold pointers instead of contents")
        return missing

    def _add_submodule(self, path: Path, name: str, place: str) -> str | None:
        """Fill the folder of a submodule; return why it stays empty."""
        # Through --git-path a name such as ../x would leave the repository; git refuses it too.
        if ".." in Path(name).parts or ".." in Path(place).parts:
            return "has a name that leaves the repository"
        own = self.git_path("modules") / name
        if not own.is_dir():
            return "is not in the repository: git submodule update --init"
        # With its URL as an option nothing is written to the user's configuration.
        options = ("-c", f"submodule.{name}.url={own}", "-c", f"submodule.{name}.active=true",
                   "-c", "protocol.file.allow=always")  # fmt: skip
        words = (*options, "-C", str(path), "submodule", "--quiet", "update", "--checkout")
        try:
            self._git(*words, "--", place, what="can't be checked out")
        except OptionError as error:
            return str(error)
        return None

    def forget(self, path: PathLike) -> None:
        """Take a worktree out of git's list, and remove what is left of it."""
        words = ("worktree", "remove", "--force", "--force", os.fspath(path))
        self._git(*words, what="git worktree failed", check=False)

    def _git(
        self,
        *words: str,
        what: str,
        given: str = "",
        check: bool = True,
        error: type[OptionError] = OptionError,
    ) -> str:
        environment = {k: v for k, v in os.environ.items() if k not in REPOSITORY_VARIABLES}
        command = ["git", "-c", f"core.hooksPath={os.devnull}", "-C", str(self._folder), *words]
        try:
            done = subprocess.run(
                command,
                input=given.encode(),
                capture_output=True,
                env={**environment, **marked(), "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
                timeout=GIT_TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError as missing:
            raise MissingDependencyError("git is needed, and is not in PATH") from missing
        except subprocess.TimeoutExpired as late:
            raise error(f"{what}: git took more than {GIT_TIMEOUT_S} s") from late
        if check and done.returncode:
            reason = text_lines(done.stderr.decode("utf-8", "replace").strip())
            raise error(f"{what}: {reason[-1]}" if reason else what)
        # Not in text mode, in which a carriage return of a subject ends its line.
        return done.stdout.decode("utf-8", "replace")


class Checkouts:
    """Worktrees of the commits of a repository, made on request."""

    def __init__(self, repository: Repository, scratch: Path, cleaner: Cleaner) -> None:
        self._repository = repository
        self._scratch = scratch
        self._cleaner = cleaner
        self._made: dict[str, Path] = {}
        self.missing: dict[str, str] = {}
        """Submodules and files that could not be set up, with the first commit that lacks them."""

    def ready(self, revision: Revision) -> Place:
        """Return the folder of a commit that the user's own stands for; see `Places`."""
        path = self._made.get(revision.id)
        if path is None:
            path = self._scratch / revision.id[:12]
            self._made[revision.id] = path
            self._cleaner.keep_worktree(self._repository.root, path)
            try:
                self._repository.add(revision.id, path)
                for text in self._repository.complete(path):
                    self.missing.setdefault(text, revision.short)
            except UnusableRevisionError:
                self.drop(revision)
                raise
        folder = path / self._repository.prefix
        if not folder.is_dir():
            raise UnusableRevisionError(
                f"{revision.short}: has no folder {self._repository.prefix.rstrip('/')}"
            )
        return Place(folder, {})

    def drop(self, revision: Revision) -> None:
        """Remove the worktree of a commit."""
        path = self._made.pop(revision.id, None)
        if path is not None:
            self._repository.forget(path)
            self._cleaner.drop_worktree(self._repository.root, path)

    def close(self) -> None:
        """Remove all worktrees. Git's own list is cleaned first, because little time may be
        left."""
        gone = self._scratch / "gone"
        gone.mkdir(parents=True, exist_ok=True)
        for path in self._made.values():
            if path.exists():
                path.rename(gone / path.name)
        for path in self._made.values():
            self._repository.forget(path)
            self._cleaner.drop_worktree(self._repository.root, path)
        self._made.clear()


# ---------------------------------------------------------------------------------- versions


@dataclass(frozen=True, slots=True)
class Source:
    """The source of package versions."""

    package: str
    find_links: str | None = None
    """A folder or page of wheels, which is then the only source."""
    with_dependencies: bool = False
    """True to install dependencies too; by default all versions use those that are installed
    here."""

    def options(self) -> list[str]:
        """Return the options for pip."""
        given = ["--no-index", "--find-links", self.find_links] if self.find_links else []
        return given if self.with_dependencies else [*given, "--no-deps", "--ignore-installed"]


_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")


def package_versions(source: Source, text: str) -> list[Revision]:
    """Return the versions to test, first to last, from `1.0..1.4`, all that the source has from one
    to the other, or `1.0,1.1,1.4`, these.

    Raises:
        OptionError: No such package or version, or they are no range.
    """
    if not _NAME.fullmatch(source.package):
        raise OptionError(f"{source.package}: is no name of a package")
    first, dots, last = text.partition("..")
    named = [first, last] if dots else [part.strip() for part in text.split(",")]
    for version in named:
        if not _VERSION.fullmatch(version):
            raise OptionError(f"{version!r}: is no version; write 1.0..1.4 or 1.0,1.1,1.4")
    if len(named) < 2:
        raise OptionError(f"{text}: two versions are needed, as in 1.0..1.4")
    if not dots:
        return [Revision(version) for version in named]
    if source.find_links and Path(source.find_links).is_dir():
        parts = (path.name.split("-") for path in Path(source.find_links).glob("*.whl"))
        package = _plain(source.package)
        found = [part[1] for part in parts if len(part) >= 5 and _plain(part[0]) == package]
    else:
        words = ["index", "versions", source.package, "--pre", "--disable-pip-version-check"]
        links = source.options()[:3] if source.find_links else []
        told = _pip([*words, *links], f"{source.package}: pip finds no versions")
        listed = re.search(r"Available versions:(.*)", told)
        found = [part.strip() for part in listed[1].split(",")] if listed else []
    known = sorted(set(found), key=version_key)
    for version in named:
        if version not in known:
            there = ", ".join(known[-20:]) or "none"
            raise OptionError(f"{source.package} {version}: not found; there are {there}")
    begin, end = known.index(first), known.index(last)
    if begin >= end:
        raise OptionError(f"{first} is not before {last}")
    return [Revision(version) for version in known[begin : end + 1]]


def version_key(version: str) -> tuple[object, ...]:
    """Return a key that sorts versions by number, with 1.0rc1 before 1.0 before 1.0.post1."""
    main, *rest = re.split(r"(?=(?:\.?dev|a|b|rc|\.?post|\+))", version, maxsplit=1)
    numbers = [int(part) for part in re.findall(r"\d+", main)]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    after = rest[0].lstrip(".") if rest else ""
    kind = {"d": -4, "a": -3, "b": -2, "r": -1, "": 0, "+": 1, "p": 2}.get(after[:1], 0)
    more = re.findall(r"\d+", after)
    return tuple(numbers), kind, tuple(int(part) for part in more), after


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class Installs:
    """Versions of a package, each in a virtual environment that sees everything that ours has."""

    def __init__(self, source: Source, scratch: Path) -> None:
        self._source = source
        self._scratch = scratch
        self._made: dict[str, Path] = {}

    @staticmethod
    @contextmanager
    def of(source: Source) -> Iterator[Installs]:
        """Yield environments that are removed at the end."""
        with cleaning(), working_folder() as scratch:
            yield Installs(source, scratch)

    def ready(self, revision: Revision) -> Place:
        """Return an environment with the version installed; see `Places`."""
        path = self._made.get(revision.id)
        if path is None:
            path = self._scratch / f"v{len(self._made)}-{re.sub('[^0-9A-Za-z.]', '_', revision.id)}"
            with ExitStack() as undo:
                undo.callback(shutil.rmtree, path, ignore_errors=True)
                self._install(path, revision)
                undo.pop_all()
            self._made[revision.id] = path
        scripts = path / "bin"
        paths = os.environ.get("PATH", os.defpath)
        env = {"VIRTUAL_ENV": str(path), "PATH": f"{scripts}{os.pathsep}{paths}"}
        return Place(None, env, str(scripts / "python"))

    def drop(self, revision: Revision) -> None:
        """Remove the environment of a version."""
        path = self._made.pop(revision.id, None)
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)

    def _install(self, path: Path, revision: Revision) -> None:
        what = f"{self._source.package} {revision.id}: can't be installed"
        try:
            venv.create(path, system_site_packages=True, with_pip=False, symlinks=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise UnusableRevisionError(f"{what}: no virtual environment: {error}") from error
        own = next(path.glob("lib*/python*/site-packages"))
        # A virtual environment sees the packages of the interpreter from which it is made, but not
        # those of the environment in which this process runs.
        paths = sysconfig.get_paths()
        around = dict.fromkeys(paths[key] for key in ("purelib", "platlib"))
        write_text(own / "_around.pth", "".join(f"{each}\n" for each in around))
        wanted = f"{self._source.package}=={revision.id}"
        words = ["--python", str(path / "bin" / "python"), "install", "--quiet"]
        _pip(
            [*words, "--disable-pip-version-check", *self._source.options(), wanted],
            what,
            UnusableRevisionError,
        )


def _pip(words: Sequence[str], what: str, error: type[OptionError] = OptionError) -> str:
    done = run_fresh([sys.executable, "-m", "pip", *words], timeout_s=INSTALL_TIMEOUT_S)
    if done.timed_out:
        raise error(f"{what}: pip took more than {INSTALL_TIMEOUT_S} s")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = (lines or done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise error(f"{what}: {reason.removeprefix('ERROR: ')}")
    return done.stdout
