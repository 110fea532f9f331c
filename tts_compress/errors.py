"""The errors that a caller can catch, as one tree.

TTSCompressError
├── ModelError          a model that cannot be found or read, or is not what it claims to be
├── RecipeError         a recipe, contract, calibration set, suite or gate file that is wrong
├── SchemeError         a scheme that does not exist, or that the model's family does not support
├── QuantizationError   a conversion that could not do what its recipe promises
├── ArtifactError       an output that cannot be written, or a saved result that was altered
├── TextError           a text that cannot be spoken
├── EvaluationError     an evaluation that cannot go on
└── MissingExtraError   an optional dependency that is not installed

A message states what was wrong (with the value), what is accepted, and what to do. Errors of other
packages are quoted by `first_line` or `reason`: their messages may have many lines, or none.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from tts_compress.plain import one_line


class TTSCompressError(Exception):
    """Any error of this package; the command line prints it as one line and exits with 2."""


class ModelError(TTSCompressError):
    """A model cannot be found, read, or is not what it claims to be."""


class RecipeError(TTSCompressError):
    """A recipe, contract, calibration set, suite or gate file is wrong."""


class SchemeError(TTSCompressError):
    """A scheme is unknown, or not available for this family."""


class QuantizationError(TTSCompressError):
    """A conversion could not do what its recipe promises."""


class ArtifactError(TTSCompressError):
    """An output cannot be written, or a saved result was altered."""


class TextError(TTSCompressError):
    """A text cannot be spoken."""


class EvaluationError(TTSCompressError):
    """An evaluation cannot go on."""


_WITHOUT_DEPENDENCIES = {
    "f5": "f5-tts vocos encodec",
    "naturalspeech2": "encodec",
    "parler": "parler-tts descript-audio-codec-unofficial",
}
"""Packages whose own lists of dependencies name what speaking does not need (gradio, wandb, builds
of torchaudio that some systems do not have); the extra brings what it does need."""


class MissingExtraError(TTSCompressError):
    """An optional dependency is not installed.

    Args:
        package: The import that failed.
        extra: The extra of this project that brings it.
    """

    def __init__(self, package: str, extra: str) -> None:
        command = f"pip install 'tts-compress[{extra}]'"
        if extra in _WITHOUT_DEPENDENCIES:
            command += f" && pip install --no-deps {_WITHOUT_DEPENDENCIES[extra]}"
        super().__init__(f"{package!r} is not installed; install it with: {command}")


@contextmanager
def model_errors(problem: str) -> Iterator[None]:
    """Turn errors of other packages' code in the block into a `ModelError`.

    For code that was written for its authors' own files: arbitrary content makes it fail in
    arbitrary ways. A package that is not installed is no such error.

    Args:
        problem: States what cannot be done, with the value; the error's message follows.
    """
    with raising(ModelError, problem, Exception):
        yield


@contextmanager
def raising(
    kind: type[TTSCompressError], problem: str, *causes: type[Exception], advice: str = ""
) -> Iterator[None]:
    """Turn errors of the block into a `kind`; ours, missing packages and lack of memory pass.

    Args:
        kind: The error that is raised.
        problem: States what cannot be done, with the value; the error's message follows.
        causes: Errors that are turned; by default those of files and of what is in them.
        advice: States what to do about it, at the end.
    """
    turned = causes or (OSError, ValueError)
    try:
        yield
    except (TTSCompressError, ImportError, MemoryError):
        raise
    except turned as error:
        raise kind(f"{problem}: {reason(error)}{advice and '; '}{advice}") from error


@contextmanager
def file_errors(problem: str) -> Iterator[None]:
    """Turn errors of the file system in the block into an `ArtifactError`.

    Args:
        problem: States what cannot be done, with the path; the system's reason follows.
    """
    try:
        yield
    except OSError as error:
        raise ArtifactError(f"{problem}: {error.strerror or error}") from error


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Turn a failed import in the block into a `MissingExtraError` of an extra that brings it."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(error.name or "a package", extra) from error


class TTSCompressWarning(UserWarning):
    """Something a user should know that does not stop the work."""


_SOURCE = re.compile(r"(?<= )/\S+\.(h|cc):\d+ (\w+ )?[\w:~]+\(.*?\) (?=[A-Z])")
"""The line and function of C++ from which onnxruntime raises, longer than a message may be."""


def reason(error: BaseException) -> str:
    """Return an error's message in one line of at most 300 characters."""
    return one_line(_message(error), 300)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, cut like `reason`; advice may follow it."""
    return one_line(_message(error).splitlines()[0], 300)


def nearest(name: str, accepted: Iterable[str]) -> str:
    """Return the end of an error that suggests the most similar accepted name, if any is."""
    near = get_close_matches(name, list(accepted), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _message(error: BaseException) -> str:
    number = f"[Errno {getattr(error, 'errno', None)}] "  # means nothing to most readers
    told = _SOURCE.sub("", str(error).strip().removeprefix(number), count=1)
    return told or repr(error)
