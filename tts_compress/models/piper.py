"""Piper voices: VITS as one ONNX graph plus a JSON file, spoken by the `piper` program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper

from tts_compress.audio import Audio
from tts_compress.errors import MissingExtraError, ModelError, TextError
from tts_compress.models.base import ModelFiles
from tts_compress.models.onnx_components import find_components
from tts_compress.models.piper_config import read_voice_config
from tts_compress.models.texts import check_encodable
from tts_compress.onnx.modules import initializer_names
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.session import input_names, open_session, run_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import onnx
    import onnxruntime
    from piper import PiperVoice

    from tts_compress.artifact import Manifest
    from tts_compress.models.base import Component
    from tts_compress.models.graph_file import GraphFile
    from tts_compress.onnx.session import Feeds

__all__ = ["FAMILY", "PiperModel"]

FAMILY = "piper"

_ROLES = {
    "enc_p": "text encoder",
    "dp": "duration predictor",
    "flow": "flow",
    "dec": "decoder",
    "emb_g": "speaker embedding",
}
_INPUTS = {"input", "input_lengths", "scales"}

MAX_SYMBOLS = 2_000
"""Phoneme ids in one sentence, about two minutes of speech; attention's memory is quadratic."""


class PiperModel:
    """A Piper voice, from its files or compressed in memory.

    Args:
        file: The voice's `.onnx` file or graph.
        config: The voice's configuration; by default the file's name with `.json` behind it.

    Raises:
        ModelError: A file is missing, or the configuration is not one of a Piper voice.
    """

    family = FAMILY

    def __init__(self, file: GraphFile, *, config: Path | None = None) -> None:
        file.check("Piper voice")
        self._file = file
        self._config_path = config or file.path.with_name(f"{file.path.name}.json")
        self._config = read_voice_config(self._config_path)
        self._voice: PiperVoice | None = None
        self._session: onnxruntime.InferenceSession | None = None

    @property
    def spec(self) -> str:
        """What the user named the voice by."""
        return self._file.spec

    @property
    def manifest(self) -> Manifest | None:
        """How it was compressed; None for an original."""
        return self._file.manifest

    @property
    def name(self) -> str:
        """The file's name without `.onnx`."""
        return self._file.path.stem

    @property
    def sample_rate(self) -> int:
        """Samples per second, Hz."""
        return int(self._config["audio"]["sample_rate"])

    def graph(self) -> onnx.ModelProto:
        """Return a copy of the graph.

        Raises:
            ModelError: The file is not an ONNX file, or not one of a Piper voice.
        """
        model = self._file.read()
        if self._file.held is None:
            _check_voice(self._file.path, model)
        return model

    def with_graph(self, graph: onnx.ModelProto, manifest: Manifest) -> PiperModel:
        """Return this voice with another graph; nothing is written."""
        return PiperModel(self._file.holding(graph, manifest), config=self._config_path)

    def components(self) -> Mapping[str, Component]:
        """Return the components that hold weights, in the order data flows."""
        found = find_components(self.graph().graph)
        return {
            name: replace(found[name], role=role) for name, role in _ROLES.items() if name in found
        }

    def describe(self) -> Mapping[str, Any]:
        """Return what `inspect` shows beside the components."""
        return {
            "sample rate": f"{self.sample_rate} Hz",
            "language": self._config["espeak"]["voice"],
            "speakers": self._config["num_speakers"],
            "quality": self._config["audio"].get("quality", "unknown"),
        }

    def synthesize(self, text: str, *, seed: int | None) -> Audio:
        """Speak a text with noise chosen by `seed`; None speaks without noise.

        Raises:
            TextError: The text is empty, has nothing to speak, or a sentence of it is too long.
            ModelError: The graph cannot be run.
        """
        if self._session is None:
            self._session = open_session(_with_durations(feed_noise(self.graph())), self.spec)
        session = self._session
        runs = [
            run_session(session, feeds, self.spec)
            for feeds in self._feeds(input_names(session), text, seed)
        ]
        return Audio(
            samples=np.concatenate([run[0].reshape(-1) for run in runs]).astype(np.float32),
            sample_rate=self.sample_rate,
            durations=np.concatenate([run[-1].reshape(-1) for run in runs]).astype(np.int64),
        )

    def calibration_calls(self, texts: Iterable[str], *, seed: int) -> Iterator[Feeds]:
        """Yield the inputs that the graph with fed noise gets, one per sentence."""
        # The names alone: a session opened for them would hold every weight once more.
        names = [value.name for value in feed_noise(self.graph()).graph.input]
        for index, text in enumerate(texts):
            yield from self._feeds(names, text, seed + index)

    def open_runtime(self, *, threads: int) -> PiperRuntime:
        """Open the file in piper's own runtime; nothing else is read."""
        return PiperRuntime(self._piper(open_session(self._file.location(), self.spec, threads)))

    def files(self) -> ModelFiles:
        """Return the `.onnx` file and its configuration.

        Raises:
            ModelError: The voice was compressed in memory and not saved yet.
        """
        return ModelFiles(weights=(self._file.location(),), settings=(self._config_path,))

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write `<name>.onnx`, `<name>.onnx.json` and the manifest, all or nothing.

        Raises:
            ArtifactError: The directory exists and `force` is not given, or cannot be written.
        """
        beside = {f"{self._file.path.name}.json": self._config_path}
        return self._file.save(Path(directory), beside, force=force)

    def _feeds(self, names: list[str], text: str, seed: int | None) -> Iterator[Feeds]:
        """Yield what a graph with these inputs gets for each sentence of a text."""
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
                feeds["sid"] = np.array([self._config.get("default_speaker_id", 0)], np.int64)
            yield feeds | draw_noise(names, seed=None if seed is None else (seed, index))

    def _sentences(self, text: str) -> list[list[int]]:
        """Return phoneme ids of each sentence, as piper itself would feed them."""
        check_encodable(text)
        if self._voice is None:
            self._voice = self._piper(None)
        try:
            sentences = [p for p in self._voice.phonemize(text) if p] if text.strip() else []
            ids = [self._voice.phonemes_to_ids(sentence) for sentence in sentences]
        # A language espeak-ng does not know, a map without the symbols every sentence has.
        except (RuntimeError, ValueError, KeyError) as error:
            raise ModelError(
                f"'{self._config_path}' does not fit the phonemizer: {error}"
            ) from error
        if not ids:
            raise TextError(f"nothing to speak in {text[:40]!r}; give a text with words")
        if (longest := max(len(sentence) for sentence in ids)) > MAX_SYMBOLS:
            raise TextError(
                f"a sentence of {text[:40]!r}… has {longest} phoneme ids; "
                f"at most {MAX_SYMBOLS} are accepted: end sentences with a full stop"
            )
        return ids

    def _piper(self, session: onnxruntime.InferenceSession | None) -> PiperVoice:
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
    """Piper's own inference code; what its users hear, before it normalises loudness."""

    def __init__(self, voice: PiperVoice) -> None:
        self._voice = voice

    def speak(self, text: str) -> Audio:
        """Speak with the voice's default settings and the runtime's own random noise.

        Raises:
            TextError: There is nothing to speak in the text.
        """
        from piper import SynthesisConfig

        check_encodable(text)
        # Normalised loudness would hide clipping and level changes.
        settings = SynthesisConfig(normalize_audio=False)
        chunks = [c.audio_float_array for c in self._voice.synthesize(text, settings)]
        if not chunks:
            raise TextError(f"nothing to speak in {text[:40]!r}; give a text with words")
        return Audio(samples=np.concatenate(chunks), sample_rate=self._voice.config.sample_rate)


def _check_voice(path: Path, model: onnx.ModelProto) -> None:
    found = {value.name for value in model.graph.input} - initializer_names(model.graph)
    if not found >= _INPUTS or found - _INPUTS - {"sid"}:
        raise ModelError(
            f"'{path}' is not a Piper voice: its inputs are {', '.join(sorted(found)) or 'none'}; "
            f"a voice has {', '.join(sorted(_INPUTS))}"
        )


def _with_durations(model: onnx.ModelProto) -> onnx.ModelProto:
    """Add the frames of each phoneme id, rounded up by the only `Ceil` of VITS, as an output."""
    ceils = [node.output[0] for node in model.graph.node if node.op_type == "Ceil"]
    if len(ceils) != 1:
        raise ModelError(f"the graph has {len(ceils)} Ceil operators; a Piper voice has one")
    model.graph.output.append(helper.make_empty_tensor_value_info(ceils[0]))
    return model
