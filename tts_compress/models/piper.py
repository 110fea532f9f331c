"""Piper voices: VITS as one ONNX graph plus a JSON file, spoken by the `piper` program."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from tts_compress.artifact import (
    MANIFEST_NAME,
    Manifest,
    atomic_directory,
    with_files,
)
from tts_compress.audio import Audio
from tts_compress.errors import MissingExtraError, ModelError, TextError
from tts_compress.models.noise import draw_noise, feed_noise
from tts_compress.models.onnx_components import find_components
from tts_compress.models.onnx_file import read_graph
from tts_compress.models.onnx_modules import initializer_names
from tts_compress.models.onnx_session import input_names, open_session, run_session
from tts_compress.models.piper_config import read_voice_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import onnxruntime
    from piper import PiperVoice

    from tts_compress.models.base import Component, Feeds

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
        path: The voice's `.onnx` file; where `graph` is given only its name is used.
        spec: What the user named it by.
        config: The voice's configuration; by default `<path>.json`.
        manifest: How it was compressed, if it was.
        graph: The graph, of a voice that is in memory only.

    Raises:
        ModelError: A file is missing, or the configuration is not one of a Piper voice.
    """

    family = FAMILY

    def __init__(
        self,
        path: Path,
        *,
        spec: str,
        config: Path | None = None,
        manifest: Manifest | None = None,
        graph: onnx.ModelProto | None = None,
    ) -> None:
        if graph is None and not path.is_file():
            raise ModelError(f"no file '{path}'; give an existing Piper voice (.onnx)")
        self._path = path
        self._graph = graph
        self._config_path = config or path.with_name(f"{path.name}.json")
        self._config = read_voice_config(self._config_path)
        self._voice: PiperVoice | None = None
        self._session: onnxruntime.InferenceSession | None = None
        self.spec = spec
        self.manifest = manifest

    @property
    def name(self) -> str:
        """The file's name without `.onnx`."""
        return self._path.stem

    @property
    def sample_rate(self) -> int:
        """Samples per second, Hz."""
        return int(self._config["audio"]["sample_rate"])

    def graph(self) -> onnx.ModelProto:
        """Return a copy of the graph.

        Raises:
            ModelError: The file is not an ONNX file, or not one of a Piper voice.
        """
        if self._graph is None:
            model = read_graph(self._path)
            _check_voice(self._path, model)
            return model
        copy = onnx.ModelProto()
        copy.CopyFrom(self._graph)
        return copy

    def with_graph(self, graph: onnx.ModelProto, manifest: Manifest) -> PiperModel:
        """Return this voice with another graph; nothing is written."""
        return PiperModel(
            self._path, spec=self.spec, config=self._config_path, manifest=manifest, graph=graph
        )

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
        return PiperRuntime(self._piper(open_session(self.model_file(), self.spec, threads)))

    def model_file(self) -> Path:
        """Return the `.onnx` file.

        Raises:
            ModelError: The voice was compressed in memory and not saved yet.
        """
        if self._graph is not None:
            raise ModelError(f"the compressed '{self.spec}' has no file yet; call save() first")
        return self._path

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write `<name>.onnx`, `<name>.onnx.json` and the manifest, all or nothing.

        Raises:
            ArtifactError: The directory exists and `force` is not given, or cannot be written.
        """
        target = Path(directory)
        file_name = self._path.name
        with atomic_directory(target, marker=MANIFEST_NAME, force=force) as partial:
            if self._graph is None:
                shutil.copyfile(self._path, partial / file_name)
            else:
                content = self._graph.SerializeToString(deterministic=True)
                (partial / file_name).write_bytes(content)
            shutil.copyfile(self._config_path, partial / f"{file_name}.json")
            if self.manifest is not None:
                manifest = with_files(self.manifest, partial, file_name)
                (partial / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
        return target

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
        _check_text(text)
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

        _check_text(text)
        # Normalised loudness would hide clipping and level changes.
        settings = SynthesisConfig(normalize_audio=False)
        chunks = [c.audio_float_array for c in self._voice.synthesize(text, settings)]
        if not chunks:
            raise TextError(f"nothing to speak in {text[:40]!r}; give a text with words")
        return Audio(samples=np.concatenate(chunks), sample_rate=self._voice.config.sample_rate)


def _check_text(text: str) -> None:
    """Refuse what a phonemizer written in C cannot be given."""
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise TextError(
            f"{text[:40]!r} holds null characters or halves of surrogate pairs; give plain text"
        )


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
