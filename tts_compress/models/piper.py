"""Piper voices: VITS as one ONNX graph plus a JSON file, spoken by the `piper` program."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from tts_compress.artifact import Manifest
from tts_compress.audio import Audio
from tts_compress.config import data_file, demo_voice
from tts_compress.errors import ModelError, TextError
from tts_compress.models.base import check_encodable
from tts_compress.models.contract.parts import SHIPPED, Signature
from tts_compress.models.contract.piper_file import PiperFile
from tts_compress.models.contract.reading import Explained, explain
from tts_compress.models.contract.voice import OnnxVoice
from tts_compress.models.espeak import espeak
from tts_compress.models.feeds import GraphInput
from tts_compress.models.onnx_model import Opened, artifact_graph
from tts_compress.onnx.modules import initializer_names
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.session import open_session

if TYPE_CHECKING:
    from piper import PiperVoice

_INPUTS = {"input", "input_lengths", "scales"}

_SIGNATURE = Signature(
    inputs={
        name: GraphInput(name=name, dtype=np.dtype(kind), shape=sizes)
        for name, kind, sizes in (
            ("input", np.int64, ("B", "T")),
            ("input_lengths", np.int64, ("B",)),
            ("scales", np.float32, (3,)),
            ("sid", np.int64, ("B",)),
        )
    },
    outputs=("output", "durations"),
    metadata={},
)
"""Inputs and outputs of every such graph, known without reading it; voices of one lack `sid`."""


class PiperModel(OnnxVoice):
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
        self._config_path = config or path.with_name(f"{path.name}.json")
        super().__init__(path, spec=spec, manifest=manifest, held=held)

    def _explain(self, path: Path) -> Explained:
        self._config = PiperFile(self._config_path)
        return explain(data_file(SHIPPED, "piper"), path, _SIGNATURE, self._config)

    def graph(self, part: str = "") -> onnx.ModelProto:
        """Return a copy of the graph.

        Raises:
            ModelError: The file is not an ONNX file, or not one of a Piper voice.
        """
        model = super().graph(part)
        if self.parts[part].held is None:
            _check_voice(self.parts[part].path, model, len(self.speakers))
        return model

    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""
        return {
            "sample rate": f"{self.sample_rate} Hz",
            "language": self.language,
            "speakers": self._config.content["num_speakers"],
            "quality": self._config.content["audio"].get("quality", "unknown"),
        }

    def open_runtime(self, *, threads: int) -> "PiperRuntime":
        """Open the file in piper's own runtime; nothing else is read."""
        session = open_session(self.files().weights[0], self.spec, threads)
        speaker_id = None if self.speaker is None else self.speakers[self.speaker]
        return PiperRuntime(self._config.open(session), speaker_id)

    def _settings(self) -> Mapping[str, Path]:
        return {f"{self.parts[''].path.name}.json": self._config_path}

    def _open(self, part: str) -> Opened:
        if self._config.uses_espeak:
            espeak().start()  # which takes as long as opening the session
        session = open_session(_with_durations(feed_noise(self.graph(part))), self.spec)
        names = [value.name for value in session.get_outputs()]
        return session, (names[0], names[-1])


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
