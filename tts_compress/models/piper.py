"""Piper voices: VITS as one ONNX graph plus a JSON file, spoken by the `piper` program."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tts_compress.artifact import Manifest
from tts_compress.audio import Audio
from tts_compress.config import demo_voice, describe_problems
from tts_compress.errors import MissingExtraError, ModelError, TextError, reason
from tts_compress.models.base import Component, Speaking, check_encodable
from tts_compress.models.espeak import espeak
from tts_compress.models.files import read_json
from tts_compress.models.onnx_model import OnnxModel, artifact_graph
from tts_compress.models.speakers import (
    MAX_SPEAKERS,
    find_speaker,
    primary_language,
    read_speakers,
    speakers_in_turn,
)
from tts_compress.onnx.modules import initializer_names
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.session import Feeds, input_names, open_session, run_session

if TYPE_CHECKING:
    from piper import PiperVoice

MAX_SYMBOLS = 2_000
"""Phoneme ids in one sentence, about two minutes of speech; attention's memory is quadratic."""

_MOST_SCALE = 10.0
"""Largest scale of durations or noise; at 1000 a word takes minutes and gigabytes."""

_ROLES = {
    "enc_p": "text encoder",
    "dp": "duration predictor",
    "flow": "flow",
    "dec": "decoder",
    "emb_g": "speaker embedding",
}
_PHONEMIZERS = {"ja", "th", "zh"}
"""Languages for which piper needs more packages, and our extras of these names."""

_INPUTS = {"input", "input_lengths", "scales"}


_PhonemeId: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 16)]
"""A row of the embedding of phonemes, of which published voices have 256."""


class _Table(BaseModel):
    """A table of the file; keys that only other programs read are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _Audio(_Table):
    sample_rate: int = Field(ge=1_000, le=192_000)
    quality: str = ""


class _Espeak(_Table):
    voice: str = Field(min_length=1)


class _Inference(_Table):
    noise_scale: float = Field(default=0.667, ge=0, le=_MOST_SCALE, allow_inf_nan=False)
    length_scale: float = Field(default=1.0, gt=0, le=_MOST_SCALE, allow_inf_nan=False)
    noise_w: float = Field(default=0.8, ge=0, le=_MOST_SCALE, allow_inf_nan=False)


class _VoiceConfig(_Table):
    audio: _Audio
    espeak: _Espeak
    inference: _Inference = _Inference()
    num_symbols: int = Field(ge=1)
    num_speakers: int = Field(ge=0, le=MAX_SPEAKERS)
    default_speaker_id: int = Field(default=0, ge=0, lt=MAX_SPEAKERS)
    phoneme_id_map: dict[str, list[_PhonemeId]] = Field(min_length=1)
    phoneme_type: str = "espeak"


class PiperModel(OnnxModel):
    """A Piper voice, from its files or compressed in memory.

    Args:
        path: The voice's `.onnx` file; of a voice in memory only the name it will have.
        spec: Spec by which the user named the voice.
        manifest: Record of its compression; None for an original.
        held: The graph, where it is in memory only.
        config: The voice's configuration; by default the file's name with `.json` behind it.

    Raises:
        ModelError: A file is missing, or the configuration is not one of a Piper voice.
    """

    family = "piper"
    kind = "Piper voice"

    def __init__(
        self,
        path: Path,
        *,
        spec: str,
        manifest: Manifest | None = None,
        held: onnx.ModelProto | None = None,
        config: Path | None = None,
    ) -> None:
        super().__init__(path, spec=spec, manifest=manifest, held=held)
        self._config_path = config or path.with_name(f"{path.name}.json")
        self._config = _read_config(self._config_path)
        self._phonemizers: list[PiperVoice] = []
        self.speakers = read_speakers(self._config, self._config_path)
        self.speaker: str | None = None

    @property
    def sample_rate(self) -> int:
        """Samples per second, Hz."""
        return int(self._config["audio"]["sample_rate"])

    @property
    def language(self) -> str:
        """The locale that the configuration states, such as `de_DE`, or its espeak-ng voice."""
        stated = self._config.get("language")
        code = stated.get("code") if isinstance(stated, dict) else None
        return code if isinstance(code, str) and code else str(self._config["espeak"]["voice"])

    def graph(self, part: str = "") -> onnx.ModelProto:
        """Return a copy of the graph.

        Raises:
            ModelError: The file is not an ONNX file, or not one of a Piper voice.
        """
        model = super().graph(part)
        if self.parts[part].held is None:
            _check_voice(self.parts[part].path, model, len(self.speakers))
        return model

    @property
    def speaking(self) -> Speaking:
        """The speaker that was chosen, and the language."""
        return Speaking(speaker=self.speaker, languages=(self.language,))

    def speaking_as(self, speaking: Speaking) -> Self:
        """Return this voice speaking as one of its speakers.

        Raises:
            ModelError: There is no such speaker, or only one.
        """
        if speaking.speaker is None:
            return self
        return self._with(speaker=find_speaker(self.speakers, speaking.speaker, self.spec))

    def components(self) -> Mapping[str, Component]:
        """Return the components that hold weights, in the order data flows."""
        found = super().components()
        return {
            name: replace(found[name], role=role) for name, role in _ROLES.items() if name in found
        }

    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""
        return {
            "sample rate": f"{self.sample_rate} Hz",
            "language": self.language,
            "speakers": self._config["num_speakers"],
            "quality": self._config["audio"].get("quality", "unknown"),
        }

    def synthesize(self, text: str, *, seed: int | None = 0) -> Audio:
        """Speak a text with noise chosen by `seed`; None speaks without noise.

        Raises:
            TextError: The text is empty, has nothing to speak, or a sentence of it is too long.
            ModelError: The graph cannot be run.
        """
        if not self._sessions:
            if self._uses_espeak:
                espeak().start()  # which takes as long as opening the session
            graph = _with_durations(feed_noise(self.graph()))
            self._sessions[""] = open_session(graph, self.spec)
        session = self._sessions[""]
        runs = [
            run_session(session, feeds, self.spec)
            for feeds in self._feeds(input_names(session), text, seed, self.speaker)
        ]
        return Audio(
            samples=np.concatenate([run[0].reshape(-1) for run in runs]).astype(np.float32),
            sample_rate=self.sample_rate,
            durations=np.concatenate([run[-1].reshape(-1) for run in runs]).astype(np.int64),
        )

    def calibration_calls(
        self, texts: Iterable[str], *, seed: int, part: str = ""
    ) -> Iterator[Feeds]:
        """Yield the inputs of the graph with fed noise, one call per sentence.

        Texts go round the speakers, the first text with the first one; a speaker that was chosen
        speaks all.
        """
        # The names alone: a session opened for them would hold every weight once more.
        names = [value.name for value in feed_noise(self.graph(part)).graph.input]
        speakers = speakers_in_turn(self)
        for index, text in enumerate(texts):
            speaker = speakers[index % len(speakers)] if speakers else None
            yield from self._feeds(names, text, seed + index, speaker)

    def open_runtime(self, *, threads: int) -> "PiperRuntime":
        """Open the file in piper's own runtime; nothing else is read."""
        session = open_session(self.files().weights[0], self.spec, threads)
        speaker_id = None if self.speaker is None else self.speakers[self.speaker]
        return PiperRuntime(self._piper(session), speaker_id)

    def _settings(self) -> Mapping[str, Path]:
        return {f"{self.parts[''].path.name}.json": self._config_path}

    def _feeds(
        self, names: list[str], text: str, seed: int | None, speaker: str | None
    ) -> Iterator[Feeds]:
        """Yield the values of a graph's inputs for each sentence of a text."""
        inference = self._config.get("inference", {})
        quiet = seed is None
        scales = [
            0.0 if quiet else inference.get("noise_scale", 0.667),
            inference.get("length_scale", 1.0),
            0.0 if quiet else inference.get("noise_w", 0.8),
        ]
        for index, ids in enumerate(self._sentences(text)):
            feeds: Feeds = {
                "input": np.array([ids], np.int64),
                "input_lengths": np.array([len(ids)], np.int64),
                "scales": np.array(scales, np.float32),
            }
            if "sid" in names:
                default = self._config.get("default_speaker_id", 0)
                sid = default if speaker is None else self.speakers[speaker]
                feeds["sid"] = np.array([sid], np.int64)
            yield feeds | draw_noise(names, seed=None if seed is None else (seed, index))

    def _sentences(self, text: str) -> list[list[int]]:
        """Return phoneme ids of each sentence, as piper itself feeds them."""
        check_encodable(text)
        if not text.strip():
            ids = []
        elif self._uses_espeak:
            try:
                ids = espeak().ids(json.dumps(self._config), text)
            except ModelError as error:
                raise ModelError(
                    f"'{self._config_path}' does not fit the phonemizer: {error}"
                ) from error
        else:
            ids = self._sentences_of_piper(text)
        if not ids:
            raise TextError(f"nothing to speak in {text[:40]!r}; give a text with words")
        if (longest := max(len(sentence) for sentence in ids)) > MAX_SYMBOLS:
            raise TextError(
                f"a sentence of {text[:40]!r}… has {longest} phoneme ids; "
                f"at most {MAX_SYMBOLS} are accepted: end sentences with a full stop"
            )
        return ids

    @property
    def _uses_espeak(self) -> bool:
        return bool(self._config.get("phoneme_type", "espeak") == "espeak")

    def _sentences_of_piper(self, text: str) -> list[list[int]]:
        """Return them by one of piper's other phonemizers, in this process."""
        if not self._phonemizers:
            self._phonemizers.append(self._piper(None))
        [phonemizer] = self._phonemizers
        try:
            sentences = [p for p in phonemizer.phonemize(text) if p]
            return [phonemizer.phonemes_to_ids(sentence) for sentence in sentences]
        except ImportError as error:  # Chinese, Japanese and Thai have phonemizers of their own
            extra = primary_language(self.language)
            known = extra if extra in _PHONEMIZERS else "piper"
            raise MissingExtraError(error.name or "piper", known) from error
        except OSError as error:  # the Chinese one downloads its network at first
            raise ModelError(
                f"piper's phonemizer for {self.language!r} cannot be opened: {reason(error)}; it "
                "needs the network once"
            ) from error
        except (RuntimeError, ValueError, KeyError) as error:  # a map without needed symbols
            raise ModelError(
                f"'{self._config_path}' does not fit the phonemizer: {error}"
            ) from error

    def _piper(self, session: onnxruntime.InferenceSession | None) -> "PiperVoice":
        try:
            from piper import PiperVoice
            from piper.config import PiperConfig
        except ImportError as error:
            raise MissingExtraError("piper", "piper") from error
        try:
            config = PiperConfig.from_dict(self._config)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"piper cannot use '{self._config_path}': {error}") from error
        return PiperVoice(session=session, config=config)


class PiperRuntime:
    """Piper's own inference code; with loudness as the voice gives it.

    Args:
        voice: Piper's own object.
        speaker_id: The speaker; None for the voice's default.
    """

    def __init__(self, voice: "PiperVoice", speaker_id: int | None = None) -> None:
        self._voice = voice
        self._speaker_id = speaker_id

    def speak(self, text: str) -> Audio:
        """Speak with the voice's default settings and the runtime's own random noise.

        Raises:
            TextError: There is nothing to speak in the text.
        """
        from piper import SynthesisConfig

        check_encodable(text)
        # Normalised loudness would hide clipping and level changes.
        settings = SynthesisConfig(speaker_id=self._speaker_id, normalize_audio=False)
        chunks = [c.audio_float_array for c in self._voice.synthesize(text, settings)]
        if not chunks:
            raise TextError(f"nothing to speak in {text[:40]!r}; give a text with words")
        return Audio(samples=np.concatenate(chunks), sample_rate=self._voice.config.sample_rate)


def open_piper(location: str, spec: str, manifest: Manifest | None) -> PiperModel:
    """Open the demo voice, a voice's `.onnx`, a training checkpoint, or an artifact.

    Raises:
        ModelError: A file is missing, or not one of Piper's.
        MissingExtraError: An optional package is needed to read it.
    """
    path = demo_voice() if location == "demo" else artifact_graph(Path(location), manifest)
    if path.suffix == ".ckpt":
        from tts_compress.models.piper_checkpoint import export_checkpoint

        graph, config = export_checkpoint(path)
        return PiperModel(path.with_suffix(".onnx"), spec=spec, held=graph, config=config)
    return PiperModel(path, spec=spec, manifest=manifest)


def _read_config(path: Path) -> dict[str, Any]:
    """Return the content of the file beside a voice, checked before anything trusts it."""
    if not path.is_file():
        raise ModelError(
            f"no file '{path}'; a Piper voice is a .onnx file with its .onnx.json beside it; "
            "the graph of another voice needs a contract.toml beside it (docs/contracts.md), and a "
            "bare one 'onnx:' before the path"
        )
    config: dict[str, Any] = read_json(path)
    try:
        _VoiceConfig.model_validate(config)
    except ValidationError as error:
        problems = describe_problems(error)
        raise ModelError(f"'{path}' is not a Piper voice's configuration: {problems}") from error
    return config


def _check_voice(path: Path, model: onnx.ModelProto, speakers: int) -> None:
    found = {value.name for value in model.graph.input} - initializer_names(model.graph)
    if not found >= _INPUTS or found - _INPUTS - {"sid"}:
        raise ModelError(
            f"'{path}' is not a Piper voice: its inputs are {', '.join(sorted(found)) or 'none'}; "
            f"a voice has {', '.join(sorted(_INPUTS))}"
        )
    if speakers and "sid" not in found:  # piper itself fails at such a voice
        raise ModelError(
            f"'{path}' has no input 'sid' that chooses one of the {speakers} speakers which its "
            "configuration states; set num_speakers to 1"
        )


def _with_durations(model: onnx.ModelProto) -> onnx.ModelProto:
    """Add the frames of each phoneme id, rounded up by the only `Ceil` of VITS, as an output."""
    ceils = [node.output[0] for node in model.graph.node if node.op_type == "Ceil"]
    if len(ceils) != 1:
        raise ModelError(f"the graph has {len(ceils)} Ceil operators; a Piper voice has one")
    model.graph.output.append(helper.make_empty_tensor_value_info(ceils[0]))
    return model
