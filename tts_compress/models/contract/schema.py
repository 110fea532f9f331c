"""Schema of a contract: how texts become tokens, and what each input of a graph is given."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from tts_compress.config import Config, ConfigFile

Names: TypeAlias = tuple[str, ...]

FileName: TypeAlias = Annotated[str, Field(pattern=r"^[^/\\]+$", max_length=200)]
"""Name of a file beside the graph; may hold `*`, and then is the first one that fits."""

_Id: TypeAlias = Annotated[int, Field(ge=0)]
_Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
_Values: TypeAlias = _Number | tuple[_Number, ...]

ROW = r"^voice(\[len\((?P<counted>tokens|text)\)(?P<less> - 1)?\])?$"
"""Rules that choose a style: the whole array of a voice, or the row of a number of tokens or of
characters of the text; the last row where there are not as many."""


class Tokens(Config):
    """How a text becomes tokens: a source of symbols, their ids, and what is added to them."""

    source: Literal["ids", "characters", "lexicon", "espeak"]
    """Origin of symbols: the user's own ids, the characters of the text, the words of a file, or
    espeak-ng's phonemes. Any voice takes ids written as `ids: 1 2 3`."""

    vocabulary: FileName | dict[str, str] | None = None
    """Ids of symbols: a file of lines `symbol id`, a `.json` (of a table, or one named `vocab` in
    it), or strings of symbols with consecutive ids, each by the id of its first."""

    lexicon: FileName | None = None
    """A file of lines `word symbol …`, or `word symbol … tone …` where an input takes tones."""

    lowercase: bool = False
    spaced: bool = False
    """True to put one space between words and marks: `hello , you`."""

    bos: int | None = Field(default=None, ge=0)
    """Id that begins every call; outside of the blanks by default, as `eos` is."""

    eos: _Id | tuple[_Id, ...] | None = None
    """Id that ends every call, or several."""

    edges: bool | int = True
    """False to leave `bos` and `eos` out, such as by metadata."""

    blank: int = Field(default=0, ge=0)
    blanks: bool | int = False
    """True to put `blank` before, between and behind the symbols."""

    blanks_around_edges: bool = False
    """True to put blanks before, between and behind `bos` and `eos`, too."""

    longest: int = Field(default=2_000, ge=1)
    """Most symbols of one call, without blanks, `bos` and `eos`."""

    @model_validator(mode="after")
    def _is_complete(self) -> "Tokens":
        if self.source != "ids" and self.vocabulary is None:
            raise ValueError(f"source {self.source!r} needs a 'vocabulary'")
        if self.source == "lexicon" and self.lexicon is None:
            raise ValueError("source 'lexicon' needs a 'lexicon'")
        if isinstance(self.vocabulary, dict):
            wrong = [key for key in self.vocabulary if not (key.isascii() and key.isdigit())]
            if wrong:
                raise ValueError(f"vocabulary: {wrong[0]!r} is no id; write 12 = 'abc'")
        return self


class _Input(Config):
    names: Names = ()
    """Other names that exports give this input."""

    optional: bool = False
    """True where graphs may lack it."""

    axes: int | None = None
    """Number of axes it must have; by default any."""

    type: str | None = None
    """Type it must have, such as `int32`; by default any that holds its values."""


class TokensInput(_Input):
    """The tokens themselves, what the lexicon states of each, their number, or ones for each."""

    role: Literal["tokens", "tones", "lengths", "mask"]


class StyleInput(_Input):
    """An array of the voice that speaks; the voices are the speakers."""

    role: Literal["style"]
    file: FileName | tuple[FileName, ...]
    """An `.npz` of arrays by voice, one array as `numpy.save` writes it, or float32 values
    without a header, voice after voice."""

    rule: str = Field(
        default="voice", pattern=ROW.replace("?P<counted>", "").replace("?P<less>", "")
    )
    shape: tuple[int, ...] = ()
    """Shape of one voice's array, 0 where any size above 1 will do; without a header it must be
    stated."""

    speakers: Names = ()
    """Names of the voices of a file without a header; by default their numbers."""


class SpeakerInput(_Input):
    """Number of the speaker."""

    role: Literal["speaker"]
    count: int = Field(default=1, ge=1, le=65_536)
    speakers: Names = ()
    """Names, in the order of their numbers; by default the numbers."""

    value: int = Field(default=0, ge=0)
    """The number where none was chosen, and of a voice of one."""


class ValueInput(_Input):
    """Numbers that are always the same."""

    role: Literal["speed", "scales", "constant"]
    value: _Values
    quiet: _Values | None = None
    """The numbers that turn noise off; by default the same."""


class NoiseInput(_Input):
    """Random values."""

    role: Literal["noise"]
    shape: tuple[int | Literal["tokens"], ...] = Field(min_length=1)
    distribution: Literal["normal", "uniform"] = "normal"
    """Normal of deviation 1, or uniform in [0, 1)."""


Input: TypeAlias = Annotated[
    TokensInput | StyleInput | SpeakerInput | ValueInput | NoiseInput, Field(discriminator="role")
]

ROLES = (
    "tokens",
    "tones",
    "lengths",
    "mask",
    "style",
    "speaker",
    "speed",
    "scales",
    "constant",
    "noise",
)


class Follower(Config):
    """A graph that runs on what the one before returns, such as a vocoder on a mel spectrogram."""

    graph: FileName
    input: str | None = None
    """Its input; by default the only one."""

    output: str | None = None
    """Its output that the next one reads, or that is audio; by default the first one."""


class Contract(ConfigFile):
    """How one graph, or the graphs of one system, are called."""

    name: str
    summary: str = ""
    sample_rate: int = Field(ge=1_000, le=192_000)
    language: str | None = None
    """An espeak-ng voice name, such as `en-us`."""

    output: str | None = None
    """The output that is audio, or that the next graph reads; by default the first one."""

    then: tuple[Follower, ...] = ()
    """Graphs beside it that run behind it, in this order; the last one returns audio."""

    durations: str | None = None
    """An output of the frames of each token, where the graph has it."""

    tokens: Tokens
    input: dict[str, Input]

    @model_validator(mode="after")
    def _is_complete(self) -> "Contract":
        roles = [table.role for table in self.input.values()]
        if "tokens" not in roles:
            raise ValueError("input: none has the role 'tokens'")
        if roles.count("style") > 1 or ("style" in roles and "speaker" in roles):
            raise ValueError("input: one of them chooses the voice, by a style or a speaker")
        if self.tokens.source == "espeak" and self.language is None:
            raise ValueError("language: source 'espeak' needs one, such as 'en-us'")
        return self
