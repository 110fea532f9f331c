"""The protocols of models, whatever their runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path  # pydantic reads the types of a `Prompt`
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias, runtime_checkable

from tts_compress.errors import TextError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np
    import numpy.typing as npt
    import onnx
    from torch import nn

    from tts_compress.artifact import Manifest
    from tts_compress.audio import Audio
    from tts_compress.onnx.session import Feeds

UNLIKE_UPSTREAM = "unlike upstream's own script"
"""Key of such a difference in `describe`; a report states it before its figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A separately quantizable part of a model."""

    name: str
    """Dotted prefix of its modules' names, such as `dec`."""

    role: str
    """Its function, for people: `decoder`, `duration predictor`, …"""

    parameters: int
    """Number of weights; biases and normalisation are not counted."""

    size_bytes: int
    """Bytes of those weights in the file."""

    operators: Mapping[str, int] = field(default_factory=dict)
    """Operators that hold weights, by type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Files of a model."""

    weights: tuple[Path, ...]
    """Files whose bytes are the model's size."""

    settings: tuple[Path, ...] = ()
    """Files without weights that decide how it speaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Conditions of speech besides the text; each system uses those it knows."""

    audio: Path | None = None
    """A recording of the voice to speak with, for systems that clone one."""

    text: str | None = None
    """Transcript of the recording."""

    description: str | None = None
    """Description of the speech in words, for systems that take one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaking:
    """The speaker, the languages and the prompt by which a model speaks."""

    speaker: str | int | None = None
    """Name or id of the speaker that was chosen; None for the model's own default."""

    languages: tuple[str, ...] = ()
    """Codes of the languages that texts may be in, such as `zh`; empty where none is stated."""

    prompt: Prompt | None = None
    """Its recording or description; None for a model that speaks by no prompt."""

    @property
    def language(self) -> str | None:
        """The only language that texts may be in; None for one of several, and for none stated."""
        return self.languages[0] if len(self.languages) == 1 else None


class Runtime(Protocol):
    """The system's own, unmodified inference code around a model's files; as users run it."""

    def speak(self, text: str) -> Audio:
        """Speak a text with the system's default settings and its own random noise."""


@runtime_checkable
class StreamingRuntime(Runtime, Protocol):
    """Inference code whose sound can be heard before all of it is there."""

    def stream(self, text: str) -> Iterator[Audio]:
        """Speak a text in chunks."""


@runtime_checkable
class Model(Protocol):
    """A model of one family, compressed or not; never modified in place."""

    @property
    def family(self) -> str:
        """One of the supported systems, such as `piper`, or `onnx` for a bare graph."""

    @property
    def spec(self) -> str:
        """Spec by which the user named the model."""

    @property
    def manifest(self) -> Manifest | None:
        """Record of its compression; None for an original."""

    def components(self) -> Mapping[str, Component]:
        """Return the separately quantizable parts, by name, in the order data flows."""

    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""

    def files(self) -> ModelFiles:
        """Return the files that the model consists of.

        Raises:
            ModelError: The model was compressed in memory and not saved yet.
        """

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write the runtime's own files, and the manifest if there is one, atomically.

        Raises:
            ArtifactError: The directory exists and `force` is not given, or cannot be written.
        """


@runtime_checkable
class TTSModel(Model, Protocol):
    """A model that speaks texts."""

    @property
    def sample_rate(self) -> int:
        """Samples per second of its speech, Hz."""

    @property
    def speakers(self) -> Mapping[str, int]:
        """Ids of the speakers to choose from, by name; empty for a model of one voice.

        A system that speaks by a prompt has none: the prompt chooses the voice.
        """

    @property
    def speaking(self) -> Speaking:
        """The speaker, language and prompt that were chosen, or are the model's own."""

    def speaking_as(self, speaking: Speaking) -> Self:
        """Return this model speaking otherwise; what is None or empty stays as it is.

        Args:
            speaking: A speaker by a name in `speakers`, or by an id as a number or in digits (a
                name that is a number stands for the speaker of that name); one of the model's
                languages, of which all texts are taken to be; and a prompt, of which the parts
                that are given replace the model's. A model ignores what it has no use for, but
                for a speaker.

        Raises:
            ModelError: There is no such speaker, or only one; the language is none of the model's;
                or the recording cannot be read.
        """

    def synthesize(self, text: str, *, seed: int | None = 0) -> Audio:
        """Speak a text reproducibly.

        Args:
            text: Text to speak.
            seed: Chooses the noise: two models given the same seed are given the *same noise*,
                sample for sample. None means no noise at all.

        Raises:
            TextError: The text is empty, has no speakable symbols, or is too long.
            ModelError: There is no recording to speak by, or the model cannot be read or run.
        """

    def open_runtime(self, *, threads: int) -> Runtime:
        """Open the model's files in the system's own runtime.

        Raises:
            ModelError: The model was compressed in memory and not saved yet.
        """


@runtime_checkable
class TorchModel(TTSModel, Protocol):
    """A text-to-speech model that the system's own code runs in torch."""

    def root(self) -> nn.Module:
        """Return the module that holds every component as a child, under its name.

        It is the live one, in `eval` mode and FP32 unless compressed: not to be modified.
        """

    def with_root(self, root: nn.Module, manifest: Manifest | None) -> TorchModel:
        """Return this model with other components in the system's own object; nothing is written.

        Args:
            root: The module that `root` returned, with modules replaced.
            manifest: Record of their compression; None while calibrating.
        """

    def objectives(self) -> tuple[Objective, ...]:
        """Return the objectives of training compressed components, in the order data flows.

        Empty for a system whose components cannot be trained.
        """

    def named_calls(self) -> Mapping[str, tuple[str, ...]]:
        """Return the methods other than `forward` by which the system calls components.

        By component: dotted names below `root()`, such as `t2s.infer`. Each is looked up on its
        module whenever the model speaks.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """The tokens a language model generated, in the order it reads them again."""

    ids: npt.NDArray[np.int64]
    """Inputs of the steps, shape `[S + 1, K]` for K codebooks; the first row starts the speech."""

    chosen: npt.NDArray[np.bool_]
    """Mask of the tokens of `ids[1:]` that are sound and chosen by the model, shape `[S, K]`.

    It is false where a token is forced (codebooks that start later than others, and those that end
    earlier) and where it marks the end.
    """

    stop: int | None = None
    """The token of the first codebook that ends speech, where it is drawn like any other."""


@runtime_checkable
class LanguageModel(Protocol):
    """A model that speaks by predicting tokens, whose scores can be compared."""

    def generate_tokens(self, text: str, *, seed: int | None) -> Tokens:
        """Speak a text and return the tokens instead of audio.

        Args:
            text: The text to speak.
            seed: Chooses the noise as for `synthesize`; None takes what is most probable.

        Raises:
            TextError: The text cannot be spoken.
        """

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores from which each of `tokens.ids[1:]` would be drawn.

        Args:
            text: The text that is spoken.
            tokens: The tokens before each step; the model's own choices are not used.

        Returns:
            Shape `[S, K, V]`, float32, before any rule of sampling.

        Raises:
            TextError: The text cannot be spoken.
            ModelError: The tokens are not ones of this model.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """The answers of a model that reads latents in the place of its own, at each step."""

    latents: npt.NDArray[np.float32]
    """The next latent as it is without noise, shape `[S, D]`."""

    stop: npt.NDArray[np.float32]
    """Log-odds that speech ends here, nats, shape `[S]`."""

    threshold: float
    """Log-odds above which it does end."""


@runtime_checkable
class LatentModel(Protocol):
    """A model that speaks by predicting latents, and decides at each step whether speech ends."""

    def generate_latents(self, text: str, *, seed: int | None) -> npt.NDArray[np.float32]:
        """Speak a text and return the latents that the model read, instead of audio.

        Args:
            text: The text to speak.
            seed: Chooses the noise as for `synthesize`; None takes none.

        Returns:
            Shape `[S, D]`, float32; a row of NaN begins the speech, or each part of it.

        Raises:
            TextError: The text cannot be spoken.
        """

    def read_latents(self, text: str, latents: npt.NDArray[np.float32]) -> Reading:
        """Return the answers to latents that `generate_latents` of another model returned.

        Raises:
            TextError: The text cannot be spoken.
            ModelError: The latents are not ones of this model and text.
        """


@runtime_checkable
class SteppedLatentModel(LatentModel, Protocol):
    """A model of latents that `read_latents` reads step by step, as it speaks."""

    def read_at_once(self, text: str, latents: npt.NDArray[np.float32]) -> None:
        """Read each part of a text and its latents in one call, which training records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPart:
    """One graph of a model, in its file or in memory."""

    path: Path
    """The `.onnx` file; of a graph in memory only the name it will have."""

    spec: str
    """Its name in errors."""

    lengths: frozenset[str] = frozenset()
    """Outputs that decide how long something is that is made of what the graph returns."""

    steers: bool = False
    """True where the next token is drawn of its outputs, so a changed copy says something else."""

    held: onnx.ModelProto | None = None
    """The graph, where it is in memory only."""


@runtime_checkable
class OnnxGraph(Model, Protocol):
    """A model of one ONNX graph, or of several that run on what those before return."""

    @property
    def parts(self) -> Mapping[str, GraphPart]:
        """The graphs by their names as components, in their order.

        The first one has an empty name: its components are those of its modules' names.
        """

    @property
    def sample_rate(self) -> int | None:
        """Samples per second of its speech, Hz; None for graphs that speak no texts."""

    def graph(self, part: str = "") -> onnx.ModelProto:
        """Return a copy of a graph that the caller may change."""

    def written(self, part: str) -> onnx.ModelProto:
        """Return a copy of a graph as its file has it, which `in_chunks` may have changed."""

    def in_chunks(
        self, part: str, graph: onnx.ModelProto, calls: Iterable[Feeds]
    ) -> onnx.ModelProto:
        """Return a graph in the place of one of these as it takes least memory, by its calls."""

    def with_graphs(
        self,
        graphs: Mapping[str, onnx.ModelProto],
        manifest: Manifest | None,
        *,
        threads: int | None = None,
    ) -> Self:
        """Return this model with other graphs in the place of some; nothing is written.

        Args:
            graphs: The other graphs, by the names of parts.
            manifest: Record of their compression; None for graphs that are tried.
            threads: Threads within an operator of what it opens; None changes nothing.
        """


@runtime_checkable
class GraphModel(TTSModel, OnnxGraph, Protocol):
    """A text-to-speech model in ONNX."""

    def calibration_calls(
        self, texts: Iterable[str], *, seed: int, part: str = "", every: bool = False
    ) -> Iterator[Feeds]:
        """Yield the inputs of a graph with fed noise while the model speaks texts.

        Of loops that end by themselves these are the rounds 0, 1, 2, 4, 8, …, unless `every`.
        """


def check_encodable(text: str) -> None:
    """Refuse a text that phonemizers and tokenizers written in C cannot take.

    Raises:
        TextError: The text holds null characters or halves of surrogate pairs.
    """
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise TextError(
            f"{text[:40]!r} holds null characters or halves of surrogate pairs; give plain text"
        )


def check_text(text: str) -> None:
    """Refuse a text that has nothing to speak, or cannot be encoded.

    Raises:
        TextError: It has none, or cannot.
    """
    check_encodable(text)
    if not any(character.isalnum() for character in text):
        raise TextError(f"nothing to speak in {text[:40]!r}; give a text with words")


def shown_model(model: Model) -> str:
    """Return a model in few words: class, spec and scheme."""
    scheme = "" if model.manifest is None else f", {model.manifest.scheme}"
    return f"{type(model).__name__}({model.spec!r}{scheme})"


Loss: TypeAlias = Literal["kl", "mse", "waveform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One component that training compares with its original: the call, and how.

    Each component is trained alone. Its original is called as it is in speech, the calls are
    recorded, and the compressed one, given the same inputs, is trained towards the same outputs.
    No recordings and no transcripts are needed: the original is the teacher.
    """

    module: str
    """Dotted name, below `root()`, of the module whose calls are recorded."""

    loss: Loss
    """Loss that compares the outputs.

    `kl`: scores of tokens, shape `[…, V]`, as probabilities. They are recorded while the model
    reads a whole utterance (`LanguageModel.logits`), not step by step while it speaks.
    `mse`: any tensors, by their squared difference.
    `waveform`: samples, shape `[…, T]`, by absolute difference and by spectrum; the inputs are
    tensors `[batch, channels, frames]`.
    """

    method: str = "forward"
    """The method of the module that is called; some systems call others than `forward`."""

    outputs: tuple[int, ...] = ()
    """Positions of the outputs to compare, among its floating-point tensors; () for all."""

    repeated: tuple[tuple[str, Any], ...] = ()
    """Keywords that get another value when a recorded call is repeated, such as that of a cache,
    which no longer holds the earlier calls."""

    log_deviation: int | None = None
    """Position, among the compared tensors, of the logarithm of a prior's deviation: squared
    differences of the others count in units of the deviation. None compares each by itself."""

    reads: bool = False
    """True for a language model that is recorded while it reads its own speech again, a whole part
    of a text in one call, and not step by step with a cache while it speaks."""

    steps_of: str | None = None
    """A keyword of the call whose tensor has a column for each step of speech. As many scores
    count, from the end: those before them belong to the text. None where all count."""

    encodes: Literal["text", "description"] = "text"
    """Kind of text the module encodes. A description of how to speak is the same for every text, so
    the calls of its encoder are recorded with each text in the description's place, too."""

    @property
    def name(self) -> str:
        """The module, and the method if that has a name of its own."""
        return self.module if self.method == "forward" else f"{self.module}.{self.method}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """The inputs and the output of one call of a module.

    Tensors are detached copies on the processor, in their own dtypes. Gradients can flow through
    them, also where the module ran in inference mode.
    """

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    output: Any
