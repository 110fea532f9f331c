"""Values of a graph's inputs: the tables of a contract, told apart by their role."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from tts_compress.config import Config

Names: TypeAlias = tuple[str, ...]

FileName: TypeAlias = Annotated[str, Field(pattern=r"^([^/\\.][^/\\]*/)?[^/\\]+$", max_length=200)]
"""Name of a file beside the graph, or in a folder there; may hold `*`, and then is the first one
that fits."""

_Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
_Values: TypeAlias = _Number | tuple[_Number, ...]

TOKENS = "tokens"
"""Size that is the number of tokens."""

ROW = r"^voice(\[len\((?P<counted>tokens|text)\)(?P<less> - 1)?\])?$"
"""Rules that choose a style: the whole array of a voice, or the row of a number of tokens or of
characters of the text; the last row where there are not as many."""


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
    """Output of its graph that takes its place in the next round of a loop."""


class TokensInput(BaseInput):
    """The tokens themselves, what the lexicon states of each, their number, or ones for each."""

    role: Literal["tokens", "tones", "lengths", "mask"]
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

    speakers: Names = ()
    """Names of the voices of a file without a header; by default their numbers."""


class SpeakerInput(BaseInput):
    """Number of the speaker."""

    role: Literal["speaker"]
    count: int = Field(default=1, ge=1, le=65_536)
    speakers: Names | dict[str, int] = ()
    """Names, in the order of their numbers, or with these; by default the numbers."""

    value: int = Field(default=0, ge=0, lt=65_536)
    """The number where none was chosen, and of a voice of one."""


class ValueInput(BaseInput):
    """Numbers that are always the same."""

    role: Literal["speed", "scales", "constant"]
    value: _Values
    quiet: _Values | None = None
    """The numbers that turn noise off; by default the same."""

    shape: tuple[int | str, ...] = ()
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


class OutputInput(BaseInput):
    """An output of a graph before this one."""

    role: Literal["output"]
    output: str | None = None
    """Name of the output; by default the input's own."""


class StepInput(BaseInput):
    """Number of the round of a loop, from 0, or the number of rounds."""

    role: Literal["step", "steps"]


Input: TypeAlias = Annotated[
    TokensInput | StyleInput | SpeakerInput | ValueInput | NoiseInput | OutputInput | StepInput,
    Field(discriminator="role"),
]

LEADING_ROLES = (
    *("tokens", "tones", "lengths", "mask", "style", "speaker"),
    *("speed", "scales", "constant", "noise"),
)
"""Roles of inputs of the graph that comes first."""

ROLES = (*LEADING_ROLES, "output", "step", "steps")
