"""Declarations of commands: options, help, output, and the options that several share."""

from __future__ import annotations

import argparse
import os
import re
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from math import isfinite
from pathlib import Path
from textwrap import dedent, indent
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar, get_args, get_origin

from tts_compress.errors import ArtifactError, ModelError, TTSCompressError, nearest, raising
from tts_compress.models.execution import Execution
from tts_compress.options import USAGE
from tts_compress.reading import MOST_AUDIO_BYTES, open_file
from tts_compress.terminal import progress_bars, tell

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import RenderableType

    from tts_compress.compression.sound import SoundDamage
    from tts_compress.models.base import Model
    from tts_compress.models.onnx_voice import OnnxVoice

    OptionsT = TypeVar("OptionsT", bound=DataclassInstance)
    ModelT = TypeVar("ModelT", bound=Model)

GOOD = 0
GATE_FAILED = 1
BAD_USE = 2
INTERNAL_ERROR = 70
INTERRUPTED = 130
UNREAD = 141
TERMINATED = 143

_LONGER = 24


class Output(NamedTuple):
    """Printed result of a command."""

    document: Mapping[str, Any]
    """For machines, with `--json`."""

    parts: Iterable[RenderableType]
    """For people, without it."""

    code: int = GOOD
    """Exit code of the program."""


class Parser(ArgumentParser):
    """Parser that names the nearest command, choice or option where one is misspelled."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += nearest(str(value), action.choices or ())
            raise

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and refuse what is left over while the command's own options are known."""
        options, rest = super().parse_known_args(args, namespace)
        if rest:
            near = nearest(rest[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(rest)}{near}")
        return options, rest


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Formatter for which the parentheses at the end of an option's help state its default."""

    def _expand_help(self, action: argparse.Action) -> str:
        return re.sub(r"\(([^()]*)\)$", r"(default: \1)", super()._expand_help(action))


def path(text: str) -> Path:
    """Return a path, or refuse one that no file system takes before hours of work are spent."""
    try:
        # Work is done beside an output, under a longer name.
        os.lstat(f"{text.rstrip(os.sep)}{'-' * _LONGER}")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise ArgumentTypeError(f"{text[:60]!r} is no path: {problem}") from error
    return Path(text)


def seed(text: str) -> int:
    """Return a seed of noise, or refuse it before a model is opened."""
    if (number := int(text)) < 0:
        raise ArgumentTypeError(f"seed {number} is negative; give 0 or a larger integer")
    return number


class Option:
    """An option or argument of a command, as `ArgumentParser.add_argument` takes it.

    Args:
        form: Its flag and the name of its value, such as `--output DIR`, or an argument's name;
            a flag alone is a switch.
        meaning: Its help. Parentheses at the end state the default; one that is a value is added.
        settings: More of `add_argument`.
    """

    def __init__(self, form: str, meaning: str, **settings: Any) -> None:
        self.flag, _, value = form.partition(" ")
        default = settings.get("default")
        shown = "" if default is None or isinstance(default, bool) else " (%(default)s)"
        self.settings = {"help": f"{meaning}{shown}", **settings}
        if value:
            self.settings["metavar"] = value
        elif self.flag.startswith("-") and not settings.keys() & {"action", "choices"}:
            self.settings["action"] = "store_true"

    @classmethod
    def each_of(cls, kind: type[DataclassInstance], *without: str) -> Iterator[Self]:
        """Yield the options that a dataclass declares, except for those of some fields."""
        for field in fields(kind):
            if USAGE in field.metadata and field.name not in without:
                settings = _settings(field.type, field.default)
                yield cls(*field.metadata[USAGE], dest=field.name, **settings)


def _settings(kind: Any, default: Any) -> dict[str, Any]:
    """Return the arguments of `add_argument` for the type and the default of a field."""
    if isinstance(kind, UnionType):  # with None
        kind = get_args(kind)[0]
    if get_origin(kind) is tuple:
        return {"nargs": "+", "type": get_args(kind)[0]}
    if kind is bool:
        return {"action": BooleanOptionalAction} if default else {}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind), "default": default}
    return {"type": path if kind is Path else kind, "default": default}


def options_from(arguments: Namespace, kind: type[OptionsT], **more: Any) -> OptionsT:
    """Return a dataclass of the arguments that are named as its fields and were given."""
    values = {field.name: getattr(arguments, field.name, None) for field in fields(kind)}
    stated = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if value is not None
    }
    return kind(**stated | more)


class Command:
    """Help and options of a command.

    Args:
        text: Docstring of its module: a line for the list of commands, more lines about it,
            examples without the program's name, and lines for the end of the help. Without
            docstrings (`python -OO`) the help has options only.
        options: Options and arguments; at most one of a tuple can be given.
        failed: Meaning of exit code 1, for a command that has it.
        resumes: True if the same command goes on where it was interrupted, by what is in its
            output.
        usage: First line of the help, in place of argparse's.
    """

    def __init__(
        self,
        text: str | None,
        *options: Option | tuple[Option, ...],
        failed: str = "",
        resumes: bool = False,
        usage: str | None = None,
    ) -> None:
        self.options, self.failed, self.resumes, self.usage = options, failed, resumes, usage
        self.description, _, end = (text or "").strip().partition("\n\nExamples:\n")
        self.examples, _, self.appendix = end.partition("\n\n")
        line = self.description.partition("\n")[0].rstrip(".")
        self.summary = f"{line[:1].lower()}{line[1:]}"

    def add_to(self, parser: ArgumentParser) -> None:
        """Give a parser the options and the help."""
        for option in self.options:
            if isinstance(option, Option):
                parser.add_argument(option.flag, **option.settings)
                continue
            group = parser.add_mutually_exclusive_group()
            for single in option:
                group.add_argument(single.flag, **single.settings)
        codes = {GOOD: "good", GATE_FAILED: self.failed, BAD_USE: "usage or bad input"}
        codes |= {INTERNAL_ERROR: "an error of tts-compress itself", INTERRUPTED: "interrupted"}
        shown = ", ".join(f"{code} {meaning}" for code, meaning in codes.items() if meaning)
        examples = indent(dedent(self.examples), "  tts-compress ")
        parser.epilog = f"examples:\n{examples}\n\nexit codes: {shown}\n\n{self.appendix}".rstrip()
        parser.usage, parser.description = self.usage, self.description
        parser.formatter_class = _Formatter


MODEL = "such as demo, voice.onnx, out/demo-int8, f5-tts:DIR; all forms: `tts-compress --help`"
"""Help of an argument that names a model."""


def required_output(form: str, meaning: str) -> Option:
    """Return the option of a command's output, which has to be given."""
    return Option(form, meaning, type=path, required=True)


NEW_ARTIFACT = (
    required_output("--output DIR", "new folder, such as out/NAME-SCHEME"),
    Option("--recipe TOML", "a recipe of your own (the family's)"),
)
CHECKOUT = Option(
    "--checkout DIR", "your clone of GPT-SoVITS or Amphion, for models of these systems", type=path
)
PROMPT = (
    Option("--reference WAV", "a recording to speak like", type=path),
    Option("--reference-text TEXT", "transcript of it"),
    Option("--description TEXT", "how to speak, in words"),
    CHECKOUT,
)


EXECUTION = tuple(Option.each_of(Execution))


REUSED = " (what was measured is used again)"
"""Remark of commands whose runs go on where they were."""


def check_unused(options: Namespace, file: str, kind: str, remark: str = "") -> None:
    """Check that the output holds no such file yet, or that it may be replaced."""
    if (options.output / file).exists() and not options.force:
        raise ArtifactError(
            f"'{options.output}' has a {kind}; use --force to replace it{remark}, or another output"
        )


_OTHER_SOUNDS = frozenset({".aac", ".flac", ".m4a", ".mp3", ".oga", ".ogg", ".opus", ".wma"})


def check_wav(path: Path, *, force: bool) -> None:
    """Refuse an output that is named as another kind of sound file, has no folder, or exists.

    With `force` one that exists is refused only if it is no WAV file, such as a model.
    """
    if path == Path("-"):
        raise ArtifactError("give --output a WAV file; `stream` writes samples to a pipe")
    if path.suffix.lower() in _OTHER_SOUNDS:
        raise ArtifactError(
            f"'{path}' would be a WAV file under another name; write '{path.stem}.wav', and "
            "convert it afterwards"
        )
    if not path.exists():
        if not path.parent.is_dir():
            raise ArtifactError(
                f"cannot write '{path}': '{path.parent}' is not a directory; create it, or choose "
                "another output"
            )
        return
    if not force:
        raise ArtifactError(f"'{path}' exists; use --force to replace it")
    problem = f"cannot replace '{path}'"
    with raising(ArtifactError, problem), open_file(path, MOST_AUDIO_BYTES) as file:
        beginning = file.read(4)
    if beginning not in (b"RIFF", b""):
        raise ArtifactError(f"'{path}' is no WAV file, so it is not replaced; give another output")


def prompted(model: ModelT, options: Namespace) -> ModelT:
    """Return a model with the prompt that was given on the command line, if one was."""
    from tts_compress.models.base import Prompt, Speaking, TTSModel

    audio, text = options.reference, options.reference_text
    prompt = Prompt(audio=audio, text=text, description=options.description)
    if prompt == Prompt():
        return model
    if not isinstance(model, TTSModel) or model.speaking.prompt is None:
        raise ModelError(f"'{model.spec}' speaks by no prompt; leave reference and description out")
    return model.speaking_as(Speaking(prompt=prompt))


def streaming(model: Model) -> OnnxVoice:
    """Return a model that can speak chunk by chunk.

    Raises:
        ModelError: It cannot: it is no voice of ONNX graphs.
    """
    from tts_compress.models.onnx_voice import OnnxVoice

    if not isinstance(model, OnnxVoice):
        raise ModelError(
            f"'{model.spec}' is no voice of ONNX graphs; give a voice's .onnx, or an artifact "
            "of one"
        )
    return model


def damage_heard(model: Model, small: Model, seed: int) -> SoundDamage | None:
    """Return an artifact's damage to sound, and warn where it can be heard.

    None where nothing can be compared, such as a language model's: where its tokens differ, another
    rendition is heard, not damage.
    """
    from tts_compress.compression.sound import hear
    from tts_compress.models.base import GraphModel, LanguageModel, LatentModel

    if isinstance(model, LanguageModel | LatentModel):
        return None
    if not isinstance(model, GraphModel) or not isinstance(small, GraphModel):
        return None
    try:
        with progress_bars() as progress:
            progress.advance("listen", 0, 1)
            damage = hear(model, small, seed)
            progress.advance("listen", 1, 1)
    except TTSCompressError as error:
        tell(f"not listened to: {error}")
        return None
    if not isfinite(damage.distortion):  # mu-law adds nothing to silence, so there is no unit
        return None
    if damage.is_audible:
        tell(
            f"damage can be heard: distortion is {damage.distortion:.2f}, and the noise of pauses "
            f"changes by {damage.floor_db:+.1f} dB; `--scheme int8 --quality good` keeps them "
            "below 0.5 and 3 dB"
        )
    return damage
