"""Systems that are no packages: their code is imported from the user's own clone.

Such a clone is written to be run from its root and brings top-level modules with names like
`models`, `utils` and `text`. It is imported only here, on demand: the working directory and
`sys.path` are given back at once, and a second clone with the same names is refused.
"""

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tts_compress.errors import MissingExtraError, ModelError
from tts_compress.families import Upstream, families


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A user's clone of a system."""

    upstream: Upstream
    root: Path

    @property
    def commit(self) -> str | None:
        """The commit that is checked out; None where the files do not state it."""
        return _commit(self.root / ".git")

    def load(self, name: str) -> Any:
        """Return one of its modules.

        Raises:
            ModelError: Another clone was imported into this process before, or the code is not
                that of the system.
            MissingExtraError: A package that it imports is not installed.
        """
        self._check_process()
        try:
            with self.running():
                return import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or name
            if missing.split(".", maxsplit=1)[0] not in self.upstream.modules:
                raise MissingExtraError(missing, self.upstream.extra) from error
            raise self._unusable(f"has no module {missing!r}") from error
        # The code of another commit, or packages of other versions, fail in arbitrary ways.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise self._unusable(f"cannot be imported: {name!r} fails with {reason}") from error

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the system's code as it expects: from its root, with its folders on `sys.path`.

        Both are given back as they were, and so is the root logger, which some modules set up for
        a program of their own. What the code prints, its progress and its warnings are dropped.
        """
        path, arguments = list(sys.path), list(sys.argv)
        log = logging.getLogger()
        handlers, level = list(log.handlers), log.level
        sys.path[:0] = [str(self.root / part) for part in self.upstream.paths]
        sys.argv[1:] = []  # some modules read it while they are imported
        try:
            quiet = redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO())
            with chdir(self.root), quiet[0], quiet[1], warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            sys.path[:] = path
            sys.argv[:] = arguments
            log.handlers[:] = handlers
            log.setLevel(level)

    def _unusable(self, problem: str) -> ModelError:
        return ModelError(
            f"'{self.root}' {problem}; check out {self.upstream.name} at commit "
            f"{self.upstream.commit[:10]}, which was tried, with the packages of "
            f"'tts-compress[{self.upstream.extra}]'"
        )

    def _check_process(self) -> None:
        """Refuse a process that has other modules of the same names."""
        for name in self.upstream.modules:
            loaded = _folder_of(sys.modules.get(name))
            if loaded is not None and not loaded.is_relative_to(self.root):
                raise ModelError(
                    f"{self.upstream.name} cannot be loaded here: its module {name!r} goes by the "
                    f"name of one that was imported from '{loaded}'; one process runs one such "
                    "system, use another process"
                )


def find_checkout(upstream: Upstream) -> Checkout:
    """Return the clone that the environment names."""
    named = os.environ.get(upstream.variable)
    how = (
        f"clone {upstream.repository} at commit {upstream.commit[:10]} and name it by "
        f"--checkout DIR or the environment variable {upstream.variable}"
    )
    if not named:
        raise ModelError(f"{upstream.name} runs from a clone of its repository: {how}")
    root = _folder(named)
    if missing := [marker for marker in upstream.markers if not _has(root, marker)]:
        raise ModelError(f"'{root}' is no clone of {upstream.name}: it has no {missing[0]}; {how}")
    return Checkout(upstream=upstream, root=root)


def known_upstreams() -> tuple[Upstream, ...]:
    """Return every system that runs from a clone."""
    stated = (family.upstream for family in families().values())
    return tuple(upstream for upstream in stated if upstream is not None)


@contextmanager
def named(root: Path) -> Iterator[Upstream]:
    """Have `find_checkout` find this clone in the block, here and in processes started there."""
    root, upstreams = _folder(root), known_upstreams()
    upstream = next((u for u in upstreams if all(_has(root, mark) for mark in u.markers)), None)
    if upstream is None:
        names = " or ".join(upstream.name for upstream in upstreams)
        expected = "; ".join(f"{u.name} has {', '.join(u.markers)}" for u in upstreams)
        raise ModelError(f"'{root}' is no clone of {names} ({expected})")
    with variable(upstream.variable, str(root)):
        yield upstream


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Give a variable of the environment another value in the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _folder_of(module: Any) -> Path | None:
    """Return the folder of a module's code; None for one that is missing or built in."""
    places = [getattr(module, "__file__", None), *list(getattr(module, "__path__", []))[:1]]
    file = next((candidate for candidate in places if candidate), None)
    return None if file is None else Path(file).resolve().parent


def _folder(named: str | Path) -> Path:
    try:
        return Path(named).expanduser().resolve()
    except (OSError, RuntimeError):  # no such user, a loop of links
        return Path(named).absolute()


def _has(root: Path, marker: str) -> bool:
    try:
        return (root / marker).is_file()
    except OSError:  # a name that is too long to be one, a folder that may not be read
        return False


def _commit(git: Path) -> str | None:
    """Return the commit that a repository's HEAD points to, from its files alone."""
    try:
        if git.is_file():  # a worktree or a submodule
            git = git.parent / git.read_text("utf-8").removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text("utf-8").strip()
        if not head.startswith("ref: "):
            return head
        shared = git / "commondir"  # the folder with a worktree's branches
        if shared.is_file():
            git /= shared.read_text("utf-8").strip()
        name = head.removeprefix("ref: ")
        if (git / name).is_file():
            return (git / name).read_text("utf-8").strip()
        packed = (git / "packed-refs").read_text("utf-8").splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)
    except (OSError, UnicodeError):
        return None
