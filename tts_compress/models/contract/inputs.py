"""Inputs of graphs in a contract: the roles that explain them, and what each role states."""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from tts_compress.config import Config
from tts_compress.errors import RecipeError
from tts_compress.models.feeds import GraphInput

Names: TypeAlias = tuple[str, ...]

FileName: TypeAlias = Annotated[str, Field(pattern=r"^([^/\\.][^/\\]*/)?[^/\\]+$", max_length=200)]
"""Name of a file beside the graph, or in a folder there; may hold `*`, and then is the first one
that fits."""

_Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
_Sizes: TypeAlias = tuple[Annotated[int, Field(ge=0)] | str, ...]

TOKENS = "tokens"
"""Size that is the number of tokens."""

ROW = r"^voice(\[len\((?P<counted>tokens|text)\)(?P<less> - 1)?\])?$"
"""Rules that choose a style: the whole array of a voice, or the row of a number of tokens or of
characters of the text; the last row where there are not as many."""


def _as_names(stated: object) -> object:
    """Return names as metadata states them: one as a text, numbers as numbers."""
    several = stated if isinstance(stated, list | tuple) else [stated]
    return tuple(map(str, several))


class BaseInput(Config):
    """Keys that every table has."""

    names: Names = ()
    """Other names that exports give this input."""

    optional: bool = False
    """True where graphs may lack it."""

    axes: int | None = None
    """Number of axes it must have; by default any."""

    type: str | None = None
    """Type it must have, such as `int32`; by default any that holds its values."""

    next: str | None = None
    """Output of a graph of its loop, or a drawn token, that takes its place in the next round."""


class TokensInput(BaseInput):
    """The tokens, what the lexicon states of each, their number, or ones for each.

    A transcript is the tokens of what is said in the recording.
    """

    role: Literal["tokens", "tones", "lengths", "mask", "transcript"]
    size: str = TOKENS
    """Number of ones of a mask, or what a length is: of the tokens, or a size of the contract."""


class StyleInput(BaseInput):
    """An array of the voice that speaks; the voices are the speakers."""

    role: Literal["style"]
    file: FileName | tuple[FileName, ...]
    """An `.npz` of arrays by voice, one array as `numpy.save` writes it, a `.json` for each voice,
    or float32 values without a header, voice after voice."""

    key: str | None = None
    """Name of the array in the `.json` of a voice: a table of its `dims` and `data`."""

    rule: str = Field(
        default="voice", pattern=ROW.replace("?P<counted>", "").replace("?P<less>", "")
    )
    shape: tuple[int, ...] = ()
    """Shape of one voice's array, 0 where any size above 1 will do; without a header it must be
    stated."""

    speakers: Annotated[Names, BeforeValidator(_as_names)] = ()
    """Names of the voices of a file without a header; by default their numbers."""


class SpeakerInput(BaseInput):
    """Number of the speaker."""

    role: Literal["speaker"]
    count: int = Field(default=1, ge=0, le=65_536)
    """0 or 1 for a voice of one."""

    speakers: Names | dict[str, int] = ()
    """Names, in the order of their numbers, or with these; by default the numbers."""

    value: int = Field(default=0, ge=0, lt=65_536)
    """The number where none was chosen, and of a voice of one."""


class ValueInput(BaseInput):
    """Numbers that are always the same."""

    role: Literal["speed", "scales", "constant"]
    value: float | tuple[float, ...]
    """NaN stands for what begins a sequence, in some systems."""

    quiet: _Number | tuple[_Number, ...] | None = None
    """The numbers that turn noise off; by default the same."""

    shape: _Sizes = ()
    """Sizes of its axes, as those of noise; several numbers are those along the last. By default as
    many axes as the graph wants."""

    @model_validator(mode="after")
    def _check_shape(self) -> "ValueInput":
        for numbers in (self.value, self.quiet):
            if self.shape and isinstance(numbers, tuple) and self.shape[-1] != len(numbers):
                raise ValueError(f"shape: its last size must be {len(numbers)}, of as many numbers")
        return self


class NoiseInput(BaseInput):
    """Random values."""

    role: Literal["noise"]
    shape: tuple[int | str, ...] = Field(min_length=1)
    """Sizes of its axes: numbers, `"tokens"`, or names of the contract's sizes."""

    distribution: Literal["normal", "uniform"] = "normal"
    """Normal of deviation 1, or uniform in [0, 1)."""

    scale: _Number = Field(default=1.0, ge=0)
    """Multiplies them."""


class OutputInput(BaseInput):
    """An output of a graph before this one, a token that was drawn of one, or a `[recording.…]`."""

    role: Literal["output"]
    output: str | None = None
    """Its name; by default the input's own."""

    join: int | None = Field(default=None, ge=-8, lt=8)
    """Axis along which the values of all rounds of a loop are joined; by default it is the last."""

    skip: str | None = None
    """A size: so many of the first frames are left out, along the second axis."""

    pad: str | None = None
    """A size: zeros are put behind the frames, along the second axis, until there are so many."""

    order: tuple[Annotated[int, Field(ge=0, lt=8)], ...] = ()
    """Its axes in the order in which the input has them."""

    scale: _Number = 1.0
    """Multiplies it."""


class StateInput(BaseInput):
    """A value that a graph carries from one run to the next, such as keys and values of attention.

    It begins with an output of that name of a graph before, else with numbers.
    """

    role: Literal["state"]
    output: str | None = None
    """The output that returns as it; by default of the input's own name."""

    shape: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Shape that it begins with; by default the graph's, free sizes being 1 for the first axis and
    0 for others."""

    fill: float | None = None
    """The number that it begins with; by default 0. Where shape or number is stated, no output of a
    graph before is taken."""


class Recorded(Config):
    """Samples of the recording that a voice speaks like."""

    rate: int = Field(ge=1_000, le=192_000)
    """Samples per second that it is given, Hz."""

    longest_s: float = Field(default=30.0, gt=0, le=600)


class RecordingInput(BaseInput, Recorded):
    """The samples as an input."""

    role: Literal["recording"]


class MelFeatures(Config):
    """The logarithm of magnitudes in mel bands, frame by frame: shape `[1, frames, bands]`.

    Frames are centred, in Hann's window of `n_fft` samples; there are as many as hops fit, rounded.
    Bands are as `numerics.spectra.mel_filters` has them.
    """

    bands: int = Field(ge=1, le=512)
    n_fft: int = Field(ge=16, le=16_384, multiple_of=2)
    hop_length: int = Field(ge=16, le=65_536)
    floor: float = Field(default=1e-5, gt=0, lt=1)
    """Magnitudes below count as this."""

    scale: _Number = 1.0
    """Multiplies the logarithm."""


class Hearing(Recorded):
    """Samples `[1, T]` of the recording, or their features, as graphs are given them by a name."""

    level: float | None = Field(default=None, gt=0, le=1)
    """Root mean square that a quieter recording is brought up to; sound is brought down as much."""

    mel: MelFeatures | None = None


class StepInput(BaseInput):
    """Number of the round of a loop, from 0, the number of rounds, or a flow's time, 0 to 1."""

    role: Literal["step", "steps", "time"]


Input: TypeAlias = Annotated[
    TokensInput
    | StyleInput
    | SpeakerInput
    | ValueInput
    | NoiseInput
    | OutputInput
    | StateInput
    | RecordingInput
    | StepInput,
    Field(discriminator="role"),
]

LEADING_ROLES = (
    *("tokens", "tones", "lengths", "mask", "transcript", "style", "speaker", "recording"),
    *("speed", "scales", "constant", "noise", "state"),
)
"""Roles of inputs of the graph that comes first."""

LOOPED_ROLES = (*LEADING_ROLES, "step", "steps", "time")
ROLES = (*LOOPED_ROLES, "output")


def source_of(name: str, role: Input, step: int = 0) -> str | None:
    """Return the output that an input is given in a round of a loop; None for other values."""
    if step and role.next is not None:
        return role.next
    return role.output or name if isinstance(role, OutputInput | StateInput) else None


def sizes_read(table: Input) -> Iterator[str]:
    """Yield the names of the sizes that an input needs."""
    if isinstance(table, NoiseInput | ValueInput):
        yield from (size for size in table.shape if isinstance(size, str))
    elif isinstance(table, TokensInput):
        yield table.size
    elif isinstance(table, OutputInput):
        yield from filter(None, (table.skip, table.pad))


_WHOLE = frozenset({"tokens", "tones", "lengths", "transcript", "speaker"})
_REAL = frozenset({"style", "noise", "recording", "time"})


def match_inputs(
    tables: Mapping[str, Input],
    inputs: Mapping[str, GraphInput],
    prefix: str,
    section: str,
    accepted: Iterable[str],
) -> dict[str, Input]:
    """Return the tables by the graph's own names of its inputs."""
    roles: dict[str, Input] = {}
    for name, role in _spread_tables(tables, inputs):
        present = [n for n in (name, *role.names) if n in inputs]
        if present:
            roles[present[0]] = role
        elif not role.optional:
            has = ", ".join(inputs) or "none"
            raise RecipeError(f"{prefix} the graph has no input '{name}'; its inputs are {has}")
    for name, expected in inputs.items():
        if name not in roles:
            raise RecipeError(
                f"{prefix} input '{expected}' of the graph is unexplained; add a table "
                f"[{section}.{name}] with a role ({', '.join(accepted)})"
            )
        if roles[name].role not in accepted:
            raise RecipeError(
                f"{prefix} [{section}.{name}] has the role '{roles[name].role}', which only graphs "
                "that run behind another can have"
            )
        if problem := _type_problem(roles[name], expected):
            raise RecipeError(f"{prefix} [{section}.{name}] {problem}")
    return roles


def _type_problem(role: Input, expected: GraphInput) -> str | None:
    """Return why an input of a graph cannot be given what its role states, or None if it can."""
    if role.type is not None and role.type != expected.dtype:
        return f"states type {role.type}, but the graph wants {expected}"
    if role.axes is not None and expected.shape is not None and len(expected.shape) != role.axes:
        return f"states {role.axes} axes, but the graph wants {expected}"
    if isinstance(role, StateInput) and role.shape and not expected.fits(role.shape):
        return f"begins with shape {list(role.shape)}, but the graph wants {expected}"
    whole = expected.dtype.kind in "iu"
    real = role.role in _REAL and expected.dtype.kind != "f"
    if real or (role.role in _WHOLE and not whole):
        kind = "real" if real else "whole"
        return f"has the role '{role.role}', of {kind} numbers, but the graph wants {expected}"
    values = (role.value, role.quiet or 0) if isinstance(role, ValueInput) and whole else ()
    if broken := [value for value in values if np.any(np.asarray(value) % 1)]:
        return f"states {broken[0]}, but the graph wants {expected}: give whole numbers"
    return None


def _spread_tables(
    tables: Mapping[str, Input], inputs: Iterable[str]
) -> Iterator[tuple[str, Input]]:
    """Yield tables by name; one with `*` for each input that it fits and no other table names."""
    for name, role in tables.items():
        before, star, behind = name.partition("*")
        if not star:
            yield name, role
            continue
        for fitting in (n for n in inputs if n not in tables and fnmatchcase(n, name)):
            middle = fitting[len(before) : len(fitting) - len(behind)]
            stated = role.model_dump(include={"output", "next"}, exclude_none=True).items()
            yield fitting, role.model_copy(update={k: v.replace("*", middle) for k, v in stated})
