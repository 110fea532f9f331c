"""Schema of a contract: how texts become tokens, and how graphs are run one after the other."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from tts_compress.config import Config, ConfigFile
from tts_compress.models.contract.inputs import (
    TOKENS,
    FileName,
    Hearing,
    Input,
    Names,
    StyleInput,
    sizes_read,
    source_of,
)

_Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]

_IMITATED = ("recording", "transcript")

MOST_ID = 10**9 - 1
"""Largest id of a symbol, of nine digits."""

_Id: TypeAlias = Annotated[int, Field(ge=0, le=MOST_ID)]


class Tokens(Config):
    """The way from a text to tokens: a source of symbols, their ids, and what is added to them."""

    source: Literal["ids", "characters", "lexicon", "pieces", "espeak", "piper"]
    """Origin of symbols: the user's own ids, the text's characters, a file's words, SentencePiece,
    espeak-ng's phonemes, or ids as piper makes them by the `.onnx.json` beside the graph. Any other
    voice takes ids written as `ids: 1 2 3`."""

    vocabulary: FileName | dict[str, str] | None = None
    """Ids of symbols: a file of lines `symbol id`, a `.json` (of a table, or one named `vocab` in
    it), or strings of symbols with consecutive ids, each by the id of its first; pieces' model."""

    lexicon: FileName | None = None
    """A file of lines `word symbol …`, or `word symbol … tone …` where an input takes tones."""

    normalize: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = None
    """Unicode's form that the text is brought into first."""

    replace: dict[str, str] = Field(default_factory=dict)
    """Characters or strings, and their replacements, in this order."""

    tidy: bool = False
    """True to put one space between words, and none before marks."""

    endings: str = ""
    """Marks, the first of which is put behind a text that ends with none of them."""

    around: tuple[()] | tuple[str, str] = ()
    """Put before and behind the whole text, such as the names of its language."""

    lowercase: bool = False
    spaced: bool = False
    """True to put one space between words and marks: `hello , you`."""

    bos: _Id | None = None
    """Id that begins every call; outside of the blanks by default, as `eos` is."""

    eos: _Id | Annotated[tuple[_Id, ...], Field(max_length=100)] | None = None
    """Id that ends every call, or several."""

    edges: bool | int = True
    """False to leave `bos` and `eos` out, such as by metadata."""

    blank: _Id = 0
    blanks: bool | int = False
    """True to put `blank` before, between and behind the symbols."""

    blanks_around_edges: bool = False
    """True to put blanks before, between and behind `bos` and `eos`, too."""

    longest: int = Field(default=2_000, ge=1, le=100_000)
    """Most symbols of one call, without blanks, `bos` and `eos`."""

    @model_validator(mode="after")
    def _is_complete(self) -> "Tokens":
        if self.source not in {"ids", "piper"} and self.vocabulary is None:
            raise ValueError(f"source {self.source!r} needs a 'vocabulary'")
        if self.source == "lexicon" and self.lexicon is None:
            raise ValueError("source 'lexicon' needs a 'lexicon'")
        if isinstance(self.vocabulary, dict):
            wrong = [key for key in self.vocabulary if not re.fullmatch("[0-9]{1,9}", key)]
            if wrong:
                raise ValueError(f"vocabulary: {wrong[0]!r:.40} is no id; write 12 = 'abc'")
        return self


class Size(Config):
    """A size that follows from what a graph returned: of noise, or of a mask, of a later graph.

    It is the value, divided by `speed` and times `rate` without what is behind the point, in parts
    of `hop`, the last of which may not be full; or the length of an axis.
    """

    output: str
    """Name of the output, of one value unless an axis is stated."""

    axis: int | None = Field(default=None, ge=-8, lt=8)
    """Axis of the output that has this length, which is 0 before a graph returned it."""

    plus: int = Field(default=0, ge=0, le=65_536)
    """Is added, such as 1 for the token that is read."""

    speed: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    rate: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    hop: int = Field(default=1, ge=1)


class Spectrum(Config):
    """An inverse short-time Fourier transform that makes sound of a graph's outputs."""

    form: Literal["magnitude-cosine-sine", "magnitude-phase", "real-imaginary"]
    """The outputs that it takes, each of shape [1, n_fft / 2 + 1, frames]."""

    outputs: Names = ()
    """Their names; by default the first ones of the graph."""

    n_fft: int = Field(ge=2, le=65_536, multiple_of=2)
    hop_length: int = Field(ge=1, le=65_536)
    window: Literal["hann", "none"] = "hann"
    """A periodic one of `n_fft` samples."""

    center: bool | int = True
    """True to leave out half a window at both ends, as frames were centred."""

    normalized: bool | int = False
    """True where the transform was divided by the root of `n_fft`."""

    @property
    def count(self) -> int:
        """Number of outputs it takes."""
        return self.form.count("-") + 1


class Sample(Config):
    """A draw of tokens by their scores, with noise that a compressed copy is given, too."""

    logits: str
    """Output of the graph with the scores, shape `[…, V]`; a token is drawn of each row."""

    last: bool = False
    """True to draw of the last row alone, as of a text that was read at once."""

    temperature: _Number = Field(default=1.0, ge=0)
    """Divides the scores; 0 takes the most probable token."""

    top_k: int = Field(default=0, ge=0)
    """So many of the most probable tokens are drawn from; 0 for all."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """The most probable tokens that together have this probability are drawn from."""

    repetition_penalty: float = Field(default=1.0, gt=0, le=100)
    """Divides the scores of tokens that were drawn before where they are above 0, else multiplies
    them. Keskar et al., 2019, arXiv 1909.05858."""

    after: str | None = None
    """An output of tokens, such as a prompt's, that count as drawn before."""

    greedy: int | None = Field(default=None, ge=0)
    """A token that is taken wherever it is the most probable one, such as the end of speech."""


class EulerStep(Config):
    """A value moved along a flow by Euler's method: an input, plus the output's share of a round.

    All rounds of its graph's `repeat` together take the time from 0 to 1. It may be an input's
    `next`.
    """

    input: str
    output: str


class Until(Config):
    """The end of a loop: by a token, by a number, or by its longest length."""

    output: str | None = None
    """Output of a graph of the loop, or drawn token, whose first value decides."""

    token: int | None = Field(default=None, ge=0)
    """The token that ends it; the round that drew it is left out."""

    above: _Number | None = None
    """It ends where the value, log-odds of the end, is above this."""

    after: int = Field(default=0, ge=0, le=100)
    """Rounds that are kept from the one on that ends it."""

    longest: int = Field(default=2_000, ge=1, le=10_000)
    """Most rounds."""

    latent: str | None = None
    """Output that the next round reads, where it is no token: compressed copies read the
    reference's when they are compared step by step."""

    @model_validator(mode="after")
    def _is_complete(self) -> "Until":
        if (self.output is None) != (self.token is None) + (self.above is None) - 1:
            raise ValueError("an 'output' ends a loop by a 'token' or by being 'above' a number")
        return self


class GraphTable(Config):
    """A graph: what is read of it, and how often it runs."""

    output: str | None = None
    """Its output that the next one reads, or that is audio; by default the first one."""

    repeat: int = Field(default=1, ge=1, le=1_000)
    """Number of rounds of a loop of this graph alone."""

    shift: float = Field(default=1.0, gt=0, le=100)
    """Changes the times of the rounds, of equal steps t, into s·t / (1 + (s - 1)·t): below 1 the
    first rounds are closer together."""

    loop: str | None = None
    """Name of the loop, a table of `until`, that it runs in, with its neighbours of the same."""

    sample: dict[str, Sample] = Field(default_factory=dict)
    """Tokens that are drawn of its outputs, by the names that others read them under."""

    flow: dict[str, EulerStep] = Field(default_factory=dict)
    """Values that its outputs move, by the names that others read them under."""

    spectrum: Spectrum | None = None
    """Makes sound of its outputs, where they are none."""


class Follower(GraphTable):
    """A graph that runs on what those before return, such as a vocoder on a mel spectrogram."""

    graph: FileName
    input: str | dict[str, Input] | None = None
    """Its only input, which is given what the graph before returned, by default the only one it
    has; or a table for each input."""


class Contract(GraphTable, ConfigFile):
    """The rules for calling one graph, or the graphs of one system."""

    name: str
    summary: str = ""
    sample_rate: int = Field(ge=1_000, le=192_000)
    language: str | None = None
    """An espeak-ng voice name, such as `en-us`."""

    folder: FileName | None = None
    """Name of the folder of the graphs, where the voice has others with further files."""

    files: tuple[FileName, ...] = ()
    """Further files that the system's own program reads, kept with the graphs where they are."""

    until: dict[str, Until] = Field(default_factory=dict)
    """Ends of loops, by name."""

    size: dict[str, Size] = Field(default_factory=dict)
    """Sizes that follow from what graphs returned, by name."""

    recording: dict[str, Hearing] = Field(default_factory=dict)
    """Samples or features of the recording, by the names that inputs and sizes read them under."""

    then: tuple[Follower, ...] = ()
    """Graphs beside it that run behind it, in this order; the last one returns audio."""

    durations: str | None = None
    """An output of the frames of each token, where the graph has it."""

    components: dict[str, str] = Field(default_factory=dict)
    """Components of the first graph and their roles, in the order data flows; by default all that
    hold weights."""

    tokens: Tokens
    input: dict[str, Input]

    @property
    def inputs(self) -> tuple[dict[str, Input], ...]:
        """Tables of the inputs of each graph, in their order."""
        others = (table.input for table in self.then)
        return (self.input, *(table for table in others if isinstance(table, dict)))

    @property
    def imitates(self) -> bool:
        """True if it speaks like a recording."""
        tables = (table for tables in self.inputs for table in tables.values())
        return bool(self.recording) or any(table.role in _IMITATED for table in tables)

    @property
    def prompts(self) -> frozenset[str]:
        """Outputs of tokens that count as drawn; what decides them keeps FP32, as of durations."""
        samples = (s for table in (self, *self.then) for s in table.sample.values())
        return frozenset(sample.after for sample in samples if sample.after is not None)

    @model_validator(mode="after")
    def _is_complete(self) -> "Contract":
        roles = [table.role for table in self.input.values()]
        if "tokens" not in roles:
            raise ValueError("input: none has the role 'tokens'")
        tables = [table for tables in self.inputs for table in tables.values()]
        styles = {table.file for table in tables if isinstance(table, StyleInput)}
        if len(styles) > 1 or (styles and any(table.role == "speaker" for table in tables)):
            raise ValueError("input: one file of styles, or a speaker, chooses the voice")
        for size in (size for table in tables for size in sizes_read(table)):
            if size != TOKENS and size not in self.size:
                raise ValueError(f"input: no size is named {size!r}; add a table [size.{size}]")
        if self.tokens.source == "espeak" and self.language is None:
            raise ValueError("language: source 'espeak' needs one, such as 'en-us'")
        return self


def names_read(contract: Contract, loop: str | None) -> Iterator[str]:
    """Yield names of outputs that graphs, sizes or a graph's own loop read; `*` is anything."""
    for table in contract.inputs:
        for item in ((n, role) for name, role in table.items() for n in (name, *role.names)):
            yield from filter(None, (source_of(*item), item[1].next))
    yield from (size.output for size in contract.size.values())
    if (until := contract.until.get(loop or "")) is not None:
        yield from filter(None, (until.output, until.latent))
    yield from contract.prompts
    if contract.durations is not None:
        yield contract.durations
