"""Speech recognizers behind one protocol; they measure intelligibility.

A module of this package, named as suites name it, with `_` for `-`, is a recognizer if it has a
function `open_recognizer(model: str, language: str) -> Recognizer`. Another package names such a
module under the entry points `tts_compress.recognizers`. If it needs packages beyond `evaluate`,
the module names this project's extra with them as `EXTRA`.

A recognizer's model is a local folder, or a name on the Hugging Face hub, which is downloaded once.
"""

from __future__ import annotations

import hashlib
import pkgutil
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.artifact import sha256_of
from tts_compress.errors import EvaluationError, MissingExtraError, TTSCompressError, reason
from tts_compress.models.speakers import primary_language

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tts_compress.audio import Audio, Samples

_GROUP = "tts_compress.recognizers"

_DECISIVE = {".bin", ".json", ".model", ".onnx", ".ort", ".safetensors", ".txt", ".yaml"}
"""Endings of the files that decide a transcript; the rest is documentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognizer:
    """Turns speech into words; its transcript of one audio never depends on another."""

    describe: Callable[[], str]
    """Returns the description for the report: recognizer, models and settings, with versions.

    Finished transcripts are kept by it: what decides them, such as the weights, is part of it.
    """

    listen: Callable[[Samples], str]
    """Returns the words in finite float32 samples; it need not take empty ones."""

    sample_rate: int = 16_000
    """Rate of these samples, Hz."""

    shortest_s: float = 0.0
    """Shorter sounds hold no word, and may be less than one frame of an encoder."""

    device: str = "cpu"
    """`cpu`, or `cuda` for a recognizer of which one process at a time is enough."""

    @property
    def description(self) -> str:
        """Recognizer, models and settings, with versions."""
        return self.describe()

    def transcribe(self, audio: Audio) -> str:
        """Return the transcript, not normalised; empty where no words are found.

        Takes any sample rate and never fails on silent, empty or non-finite samples: a broken
        candidate is a finding, not an error.
        """
        if not len(audio.samples) or audio.duration_s < self.shortest_s:
            return ""
        from tts_compress.audio import finite_samples

        return self.listen(finite_samples(audio, self.sample_rate)).strip()


def recognizer_names() -> frozenset[str]:
    """Return the names suites may use; nothing is imported for that."""
    shipped = {info.name.replace("_", "-") for info in pkgutil.iter_modules(__path__)}
    return frozenset(shipped | entry_points(group=_GROUP).names)


def check_recognizer(spec: str) -> str:
    """Return the name in `NAME` or `NAME:MODEL`.

    Raises:
        EvaluationError: There is no recognizer of that name.
    """
    name = spec.partition(":")[0]
    names = recognizer_names()
    if name not in names:
        raise EvaluationError(f"no recognizer named {name!r}; known: {', '.join(sorted(names))}")
    return name


def open_recognizer(spec: str, language: str) -> Recognizer:
    """Open a recognizer; this loads its models.

    Args:
        spec: `NAME` for its default model, or `NAME:MODEL`, a hub's name or a folder.
        language: The language of the texts, an espeak-ng voice name such as `en-us`.

    Raises:
        EvaluationError: There is none of that name, its model cannot be opened, or it does not
            know the language.
        MissingExtraError: Its package is not installed.
    """
    name = check_recognizer(spec)
    others = entry_points(group=_GROUP, name=name)
    extra = "evaluate"
    try:
        if others:
            module = next(iter(others)).load()
        else:
            module = import_module(f"{__name__}.{name.replace('-', '_')}")
        extra = getattr(module, "EXTRA", extra)
        opened: Recognizer = module.open_recognizer(spec.partition(":")[2], language)
    except ImportError as error:
        raise MissingExtraError(error.name or name, extra) from error
    return opened


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
    paths = sorted(files)
    for path in paths:
        before, _, inside = path.as_posix().partition("/snapshots/")
        if inside and before.rpartition("/")[2].startswith("models--"):
            return f"revision {inside[:12]}"
    lines = "".join(f"{path.name} {sha256_of(path)}\n" for path in paths)
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


def check_language(recognizer: str, languages: Iterable[str], asked: str) -> None:
    """Refuse a language that a model does not know.

    Args:
        recognizer: Name and model, for the message.
        languages: Codes of the languages it knows.
        asked: Language of the texts, as the suite writes it.

    Raises:
        EvaluationError: It is not among them.
    """
    codes = sorted(languages)
    if primary_language(asked) not in codes:
        shown = ", ".join(codes[:8]) + (", …" if len(codes) > 8 else "")
        raise EvaluationError(
            f"{recognizer!r} does not know the suite's language {asked!r} (it knows {shown}); "
            "choose another model or recognizer"
        )
