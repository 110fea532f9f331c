"""Folders that one process uses at a time: temporary ones, and ones that are locked.

Locks are the kernel's (`flock`), so that they end with the process however that was killed. Without
them, as on Windows, nothing is locked.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from tts_compress.errors import ArtifactError, file_errors

_PREFIX = ".tts-compress-temporary-"
"""Folders with this prefix and no lock are leftovers, and are removed."""

_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}
"""Errors of file systems without locks, such as some of clusters."""


def make_directory(path: Path) -> None:
    """Create a directory and its parents."""
    with file_errors(f"cannot create '{path}'"):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def temporary_folder(inside: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder that is removed when the block ends.

    The folder of a process that was killed is removed by the next one that makes a folder there.

    Args:
        inside: Folder to make it in; by default the system's for temporary files.
    """
    parent = Path(gettempdir()) if inside is None else inside
    with ExitStack() as stack:
        with file_errors(f"cannot make a folder in '{parent}'"):
            folder = stack.enter_context(spare_folder(parent))
        yield folder


@contextmanager
def spare_folder(parent: Path) -> Iterator[Path]:
    """Yield a temporary folder in another one; it raises `OSError` where that fails."""
    _remove_leftovers(parent)
    folder, lock = _make(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextmanager
def exclusive_folder(folder: Path, use: str, shown: Path | None = None) -> Iterator[None]:
    """Keep other processes, and other calls in this one, from a folder while the block lasts.

    Args:
        folder: It exists.
        use: Its use, for the message: `training`.
        shown: Folder to name there; by default this one.
    """
    lock, locks = None, _can_lock()
    with file_errors(f"cannot open '{folder}'"):
        try:
            lock = _lock(folder)
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
            locks = False
    if lock is None and locks:
        raise ArtifactError(
            f"another process is {use} into '{shown or folder}'; wait for it, or choose another "
            "output"
        )
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _make(parent: Path) -> tuple[Path, int | None]:
    while True:
        folder = Path(mkdtemp(prefix=_PREFIX, dir=parent))
        try:
            lock = _lock(folder)
        except FileNotFoundError:  # a process that removes leftovers was faster than the lock
            continue
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
            return folder, None
        if lock is not None or not _can_lock():
            return folder, lock


def _remove_leftovers(parent: Path) -> None:
    """Remove our own folders there that no living process has locked."""
    if not _can_lock():
        return
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue
            lock = _lock(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _lock(folder: Path) -> int | None:
    """Return a descriptor that holds a folder; None if another has it."""
    if not _can_lock():
        return None
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), folder.stat()):  # removed and made anew
            raise FileNotFoundError(folder)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _can_lock() -> bool:
    return os.name == "posix"
