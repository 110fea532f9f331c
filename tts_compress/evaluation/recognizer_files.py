"""Files of recognizers' models: where they are, which they are, and what is said if there are none.

A model is a local folder, or a name on the Hugging Face hub, which is downloaded once.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tts_compress.artifact import sha256_of
from tts_compress.errors import EvaluationError, TTSCompressError, reason
from tts_compress.models.speakers import primary_language

_DECISIVE = {".bin", ".json", ".model", ".onnx", ".ort", ".safetensors", ".txt", ".yaml"}
"""Endings of the files that decide a transcript; the rest is documentation."""


def find_folder(model: str) -> Path | None:
    """Return the folder that a model is in, or None for a name on a hub.

    A folder has the model's `config.json`; another one that happens to be called `small` is none.

    Raises:
        EvaluationError: It can only be a path, and there is no such folder.
    """
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return folder.resolve()
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise EvaluationError(
            f"no folder {model!r} with a model; give one that has a config.json, or a name on the "
            "hub"
        )
    return None


def model_files(folder: Path) -> list[Path]:
    """Return the files in a model's folder that decide a transcript."""
    return [path for path in folder.rglob("*") if path.suffix in _DECISIVE and path.is_file()]


def identify(files: Iterable[Path]) -> str:
    """Return the hub's revision that files belong to, or the hash of their names and contents."""
    found = sorted(files)
    for path in found:
        before, _, inside = path.as_posix().partition("/snapshots/")
        if inside and before.rpartition("/")[2].startswith("models--"):
            return f"revision {inside[:12]}"
    lines = "".join(f"{path.name} {sha256_of(path)}\n" for path in found)
    return f"files {hashlib.sha256(lines.encode()).hexdigest()[:12]}"


@contextmanager
def opening(recognizer: str, model: str) -> Iterator[None]:
    """Turn what a library raises about a model in the block into one error.

    Offline, corrupt and unknown models make libraries fail in ways of their own. A package that is
    not installed is no such error.

    Raises:
        EvaluationError: The block raised another error than one of this package.
    """
    try:
        yield
    except (TTSCompressError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise EvaluationError(
            f"cannot open the model {model!r} of {recognizer!r}: {reason(error)}; give a folder "
            "with it, or a name on the Hugging Face hub, which is downloaded once"
        ) from error


def check_language(recognizer: str, known: Iterable[str], asked: str) -> None:
    """Refuse a language that a model does not know.

    Args:
        recognizer: Name and model, for the message.
        known: Codes of the languages it knows.
        asked: Language of the texts, as the suite writes it.

    Raises:
        EvaluationError: It is not among them.
    """
    codes = sorted(known)
    if primary_language(asked) not in codes:
        shown = ", ".join(codes[:8]) + (", …" if len(codes) > 8 else "")
        raise EvaluationError(
            f"{recognizer!r} does not know the suite's language {asked!r} (it knows {shown}); "
            "choose another model or recognizer"
        )
