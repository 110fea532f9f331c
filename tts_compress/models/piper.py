"""Piper voices: VITS as one ONNX graph plus a JSON file, spoken by the `piper` program."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from tts_compress.artifact import Manifest
from tts_compress.audio import Audio
from tts_compress.config import data_file, demo_voice
from tts_compress.errors import ModelError, TextError, model_errors, needing
from tts_compress.models.base import Runtime, check_encodable
from tts_compress.models.contract.piper_file import PiperFile
from tts_compress.models.contract.reading import SHIPPED, Explained, Signature, explain
from tts_compress.models.espeak import espeak
from tts_compress.models.feeds import GraphInput
from tts_compress.models.files import check_finite, path_classes, read_pickled
from tts_compress.models.onnx_model import Opened, artifact_graph
from tts_compress.models.onnx_voice import OnnxVoice
from tts_compress.models.streaming import joined
from tts_compress.onnx.modules import initializer_names
from tts_compress.onnx.noise import feed_noise

if TYPE_CHECKING:
    import torch
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
        config: The voice's configuration; by default the file's name with `.json` behind it.
        others: Those of `OnnxModel`.
    """

    family = "piper"
    kind = "Piper voice"

    def __init__(self, path: Path, *, config: Path | None = None, **others: Any) -> None:
        self._config_path = config or path.with_name(f"{path.name}.json")
        super().__init__(path, **others)

    def _explain(self, path: Path) -> Explained:
        self._config = PiperFile(self._config_path)
        return explain(data_file(SHIPPED, "piper"), path, _SIGNATURE, self._config)

    def graph(self, part: str = "") -> onnx.ModelProto:
        """Return a copy of the graph."""
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

    def open_runtime(self, *, threads: int) -> Runtime:
        """Open the file in piper's own runtime, or the stages beside it."""
        if (streaming := self._player(threads)) is not None:
            return streaming
        self.files()  # which a voice in memory has none of
        session = self.sessions.open(self.source(""), self.spec, threads=threads)
        speaker_id = None if self.speaker is None else self.speakers[self.speaker]
        return PiperRuntime(self._config.open(session), speaker_id)

    def _settings(self) -> Mapping[str, Path]:
        return {f"{self.parts[''].path.name}.json": self._config_path}

    def _open(self, part: str) -> Opened:
        if self._config.uses_espeak:
            espeak().start()  # which takes as long as opening the session
        graph = _with_durations(feed_noise(self.graph(part)))
        session = self.sessions.open(graph, self.spec, briefly=True)
        names = [value.name for value in session.get_outputs()]
        return session, (names[0], names[-1])


class PiperRuntime:
    """Piper's own inference code; with loudness as the voice gives it.

    Args:
        voice: Piper's own object.
        speaker_id: The speaker; None for the voice's default.
    """

    def __init__(self, voice: PiperVoice, speaker_id: int | None = None) -> None:
        self._voice = voice
        self._speaker_id = speaker_id

    def speak(self, text: str) -> Audio:
        """Speak with the voice's default settings and the runtime's own random noise."""
        return joined(self.stream(text))

    def stream(self, text: str) -> Iterator[Audio]:
        """Speak sentence by sentence, as piper does."""
        from piper import SynthesisConfig

        check_encodable(text)
        # Normalised loudness would hide clipping and level changes.
        settings = SynthesisConfig(speaker_id=self._speaker_id, normalize_audio=False)
        rate, chunk = self._voice.config.sample_rate, None
        for chunk in self._voice.synthesize(text, settings):
            yield Audio(samples=chunk.audio_float_array, sample_rate=rate)
        if chunk is None:
            raise TextError(f"nothing to speak in {text[:40]!r}; give a text with words")


def open_piper(location: str, spec: str, manifest: Manifest | None) -> PiperModel:
    """Open the demo voice, a voice's `.onnx`, a training checkpoint, or an artifact."""
    path = demo_voice() if location == "demo" else artifact_graph(Path(location), manifest)
    if path.suffix == ".ckpt":
        graph, config = export_checkpoint(path)
        return PiperModel(path.with_suffix(".onnx"), spec=spec, held=graph, config=config)
    return PiperModel(path, spec=spec, manifest=manifest)


def _check_voice(path: Path, model: onnx.ModelProto, speakers: int) -> None:
    inputs = {value.name for value in model.graph.input} - initializer_names(model.graph)
    if not inputs >= _INPUTS or inputs - _INPUTS - {"sid"}:
        raise ModelError(
            f"'{path}' is not a Piper voice: its inputs are {', '.join(sorted(inputs)) or 'none'}; "
            f"a voice has {', '.join(sorted(_INPUTS))}"
        )
    if speakers and "sid" not in inputs:  # piper itself fails at such a voice
        raise ModelError(
            f"'{path}' has no input 'sid' that chooses one of the {speakers} speakers which its "
            "configuration states; set num_speakers to 1"
        )
    chosen = (n for n in model.graph.node if n.op_type == "Gather" and n.input[1] == "sid")
    tables = {node.input[0] for node in chosen}
    rows = [tensor.dims[0] for tensor in model.graph.initializer if tensor.name in tables]
    if rows and speakers > min(rows):
        raise ModelError(
            f"'{path}' has an embedding of {min(rows)} speakers, and its configuration states "
            f"{speakers}; set num_speakers to {min(rows)}"
        )


def _with_durations(model: onnx.ModelProto) -> onnx.ModelProto:
    """Add the frames of each phoneme id, rounded up by the only `Ceil` of VITS, as an output."""
    ceils = [node.output[0] for node in model.graph.node if node.op_type == "Ceil"]
    if len(ceils) != 1:
        raise ModelError(f"the graph has {len(ceils)} Ceil operators; a Piper voice has one")
    model.graph.output.append(helper.make_empty_tensor_value_info(ceils[0]))
    return model


_OPSET = 15

# Defaults of Piper's training, for what a checkpoint does not state; its medium quality.
_DEFAULTS: dict[str, Any] = {
    "num_symbols": 256,
    "num_speakers": 1,
    "filter_length": 1024,
    "hop_length": 256,
    "segment_size": 8192,
    "inter_channels": 192,
    "hidden_channels": 192,
    "filter_channels": 768,
    "n_heads": 2,
    "n_layers": 6,
    "kernel_size": 3,
    "p_dropout": 0.1,
    "resblock": "2",
    "resblock_kernel_sizes": (3, 5, 7),
    "resblock_dilation_sizes": ((1, 2), (2, 6), (3, 12)),
    "upsample_rates": (8, 8, 4),
    "upsample_initial_channel": 256,
    "upsample_kernel_sizes": (16, 16, 8),
    "gin_channels": 0,
    "use_sdp": True,
}
_MOST = {"n_layers": 100, "n_heads": 100}
_MOST_NUMBERS = 100
_UNSPOKEN = 50_000_000
"""Weights that a checkpoint may lack: those of the posterior encoder, which serves training."""

# The other arguments of SynthesizerTrn are named as in the checkpoint.
_COMPUTED = {"num_symbols", "num_speakers", "filter_length", "hop_length", "segment_size"}


def export_checkpoint(path: Path) -> tuple[onnx.ModelProto, Path]:
    """Return the graph of a training checkpoint, with weight norm folded, and its configuration.

    The voice's configuration is `<name>.ckpt.json`, `<name>.onnx.json` or training's
    `config.json` beside it. Nothing that a hostile pickle could hold is executed.
    """
    config = _find_config(path)
    checkpoint = _read(path)
    try:
        parameters = _DEFAULTS | dict(checkpoint["hyper_parameters"])
        weights = {
            name.removeprefix("model_g."): tensor
            for name, tensor in checkpoint["state_dict"].items()
            if name.startswith("model_g.")
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"'{path}' is not a checkpoint of Piper's training: {error!r}") from error
    model = _build(path, parameters, weights)
    # Tracing runs the network, whose asserts and indexing can fail on untrained weights.
    with model_errors(f"'{path}' cannot be exported to ONNX"):
        return _export(model, int(parameters["num_speakers"])), config


def _find_config(path: Path) -> Path:
    if not path.is_file():
        raise ModelError(f"no file '{path}'; give an existing Piper checkpoint (.ckpt)")
    names = (f"{path.name}.json", f"{path.stem}.onnx.json", "config.json")
    for name in names:
        if (config := path.with_name(name)).is_file():
            return config
    raise ModelError(
        f"no voice configuration beside '{path}'; one of these is needed: {', '.join(names)}"
    )


def _read(path: Path) -> Mapping[str, Any]:
    with needing("torch"):
        import torch
    # Older checkpoints keep paths among their hyper-parameters; a path is harmless data.
    problem = f"'{path}' is not a checkpoint that is safe to read"
    with model_errors(problem), torch.serialization.safe_globals(path_classes()):
        checkpoint = read_pickled(path)
    if not isinstance(checkpoint, dict):
        raise ModelError(f"'{path}' holds a {type(checkpoint).__name__}, not a checkpoint")
    return checkpoint


def _build(
    path: Path, parameters: Mapping[str, Any], weights: Mapping[str, torch.Tensor]
) -> torch.nn.Module:
    import torch
    from piper.train.vits.models import SynthesizerTrn

    from tts_compress.torch.layers.module_surgery import fold_weight_norm

    with model_errors(f"'{path}' does not fit its own hyper-parameters"):
        hyper = {
            # Command lines give sizes of layers as text.
            name: ast.literal_eval(value)
            if isinstance(value, str) and isinstance(_DEFAULTS.get(name), tuple)
            else value
            for name, value in parameters.items()
        }
        if hyper["num_speakers"] > 1 and hyper["gin_channels"] <= 0:
            hyper["gin_channels"] = 512  # as training does
        _check_sizes(hyper)
        arguments = {
            "n_vocab": hyper["num_symbols"],
            "spec_channels": hyper["filter_length"] // 2 + 1,
            "segment_size": hyper["segment_size"] // hyper["hop_length"],
            "n_speakers": hyper["num_speakers"],
            **{name: hyper[name] for name in _DEFAULTS.keys() - _COMPUTED},
        }
        with torch.device("meta"):  # first without memory: sizes are what the file states
            stated = sum(p.numel() for p in SynthesizerTrn(**arguments).parameters())
        held = sum(tensor.numel() for tensor in weights.values())
        if stated > held + _UNSPOKEN:
            raise ValueError(f"they make {stated:,} weights, of which the file holds {held:,}")
        model: torch.nn.Module = SynthesizerTrn(**arguments)
        missing, unexpected = model.load_state_dict(weights, strict=False)
    # The posterior encoder serves training only.
    missing = [name for name in missing if not name.startswith("enc_q.")]
    if missing or unexpected:
        example = (missing + unexpected)[0]
        raise ModelError(
            f"'{path}' lacks {len(missing)} weights of a Piper voice and has {len(unexpected)} "
            f"that it does not know, such as {example!r}"
        )
    spoken = ((name, tensor) for name, tensor in weights.items() if not name.startswith("enc_q."))
    check_finite(spoken, path)
    fold_weight_norm(model)  # Piper's own method covers the decoder only
    return model.eval().float()


def _check_sizes(hyper: Mapping[str, Any]) -> None:
    """Refuse numbers that no voice has, before anything is built of them."""
    for name in _DEFAULTS:
        values = hyper[name]
        rows = values if isinstance(values, list | tuple) else [values]
        flat = [n for row in rows for n in (row if isinstance(row, list | tuple) else [row])]
        most = _MOST.get(name, 1 << 16)
        if len(flat) > _MOST_NUMBERS:
            raise ValueError(f"{name} has {len(flat)} numbers, more than {_MOST_NUMBERS}")
        for number in flat:
            if isinstance(number, int | float) and not 0 <= number <= most:
                raise ValueError(f"{name} is {number!r:.40}; 0 to {most} is accepted")


def _export(model: Any, speakers: int) -> onnx.ModelProto:
    """Export with the inputs and outputs that the piper program uses."""
    import torch

    from tts_compress.torch.tracing import trace

    def forward(
        text: torch.Tensor,
        lengths: torch.Tensor,
        scales: torch.Tensor,
        sid: torch.Tensor | None = None,
    ) -> torch.Tensor:
        audio: torch.Tensor = model.infer(
            text,
            lengths,
            noise_scale=scales[0],
            length_scale=scales[1],
            noise_scale_w=scales[2],
            sid=sid,
        )[0]  # (B, 1, T)
        return audio.unsqueeze(1)  # (B, 1, 1, T), as piper expects

    model.forward = forward
    inputs = (
        torch.arange(50).unsqueeze(0) % model.n_vocab,
        torch.tensor([50]),
        torch.tensor([0.667, 1.0, 0.8]),
        torch.tensor([0]) if speakers > 1 else None,
    )
    named = {"input": {0: "batch_size", 1: "phonemes"}, "input_lengths": {0: "batch_size"}}
    named |= {"scales": {}} | ({"sid": {}} if speakers > 1 else {})
    sound = {"output": {0: "batch_size", 2: "time"}}
    return onnx.load_model_from_string(trace(model, inputs, named, sound, _OPSET))
