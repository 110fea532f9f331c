"""The place of an evaluation's pieces until it is done: a folder of the user's cache.

    evaluations/<output>/    of one evaluation, which goes on from there; gone when it is done
    analyses/<code>/         transcripts and measures, which other evaluations of the same audio use

Files are removed a week after they were written.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tts_compress.environment import code_hash
from tts_compress.errors import ArtifactError
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.store import Store, short_hash
from tts_compress.evaluation.wav_files import make_directory
from tts_compress.folders import exclusive_folder, temporary_folder

_KEPT_S = 7 * 24 * 3600.0


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/tts-compress`, `~/.cache/tts-compress` without that variable."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # As the XDG Base Directory Specification wants it, a relative path is ignored.
    return (given if given.is_absolute() else Path.home() / ".cache") / "tts-compress"


@contextmanager
def open_store(output: Path | None, options: EvaluationOptions) -> Iterator[Store]:
    """Give the place of an evaluation's pieces; they are removed when the block ends well.

    Args:
        output: Folder of the report; an evaluation without one does not go on where it ended.
        options: With `work`, that is the place, and nothing is removed.

    Raises:
        ArtifactError: It cannot be created.
    """
    if options.work is not None:
        make_directory(options.work)
        yield Store(options.work)
        return
    cache = cache_folder()
    with ExitStack() as stack:
        try:
            folder = cache / "evaluations"
            folder.mkdir(parents=True, exist_ok=True)
            _remove_old(cache)
            if output is None:
                place = stack.enter_context(temporary_folder(folder))
            else:
                place = folder / short_hash(str(output.absolute()))
                place.mkdir(exist_ok=True)
                stack.enter_context(exclusive_folder(place, "evaluating", shown=output))
        except OSError as error:
            raise ArtifactError(
                f"cannot keep work in '{cache}': {error.strerror or error}; name another folder "
                "with --work or XDG_CACHE_HOME"
            ) from error
        yield Store(place, cache / "analyses" / _code(options))
        shutil.rmtree(place, ignore_errors=True)


def _code(options: EvaluationOptions) -> str:
    """Return the hash of the code of evaluations and of the program of the workers.

    A changed recognizer or measure then finds no values of before.
    """
    return short_hash("\n".join([code_hash("evaluation"), *options.worker]))


def _remove_old(cache: Path) -> None:
    oldest = time.time() - _KEPT_S
    for path in cache.rglob("*"):
        with suppress(FileNotFoundError):  # another evaluation was faster
            if path.is_file() and path.stat().st_mtime < oldest:
                path.unlink()
