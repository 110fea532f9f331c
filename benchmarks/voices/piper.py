"""Piper's low, medium and high network with random weights, and the demo voice."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import dataclass, field
from functools import partial as bound
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.voices import piper_sentences
from benchmarks.voices.piper_sentences import FRAMES_PER_ID, Durations, make_sentences
from benchmarks.voices.voice import DURATIONS, BenchVoice, keep_folder
from tts_compress.errors import MissingExtraError, ModelError
from tts_compress.models import load
from tts_compress.models.base import GraphModel

if TYPE_CHECKING:
    import onnx

    from benchmarks.sentences import Lengths, Sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
    """Differences between Piper's qualities."""

    sample_rate: int
    changes: dict[str, Any] = field(default_factory=dict)
    """Changes of the arguments of a medium voice's network."""


_MEDIUM: dict[str, Any] = {
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
}
_HIGH: dict[str, Any] = {
    "resblock": "1",
    "resblock_kernel_sizes": (3, 7, 11),
    "resblock_dilation_sizes": ((1, 3, 5),) * 3,
    "upsample_rates": (8, 8, 2, 2),
    "upsample_initial_channel": 512,
    "upsample_kernel_sizes": (16, 16, 4, 4),
}
_NETWORKS = {
    "low": _Network(sample_rate=16_000),
    "medium": _Network(sample_rate=22_050),
    "high": _Network(sample_rate=22_050, changes=_HIGH),
}
_SYMBOLS = 256


def _random_voice(name: str, work: Path) -> str:
    network = _NETWORKS[name]
    code = [Path(file).read_text("utf-8") for file in (__file__, piper_sentences.__file__)]
    made_of = [_MEDIUM | network.changes, network.sample_rate, code]
    try:
        folder = keep_folder(
            work,
            name,
            made_of,
            bound(_make, name, network),
            packages=["torch", "piper-tts"],
        )
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "torch") from error
    return str(folder / f"{name}.onnx")


def _make(name: str, network: _Network, folder: Path) -> None:
    """Write a checkpoint as training does, and let the project export it as users do."""
    import torch

    config = _config(network.sample_rate)
    with TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Piper's classes use torch's older weight norm
        checkpoint = Path(temporary) / f"{name}.ckpt"
        beside = checkpoint.with_name(f"{name}.ckpt.json")
        torch.save(_checkpoint(_MEDIUM | network.changes), checkpoint)
        beside.write_text(json.dumps(config), encoding="utf-8")
        voice = load(checkpoint)
        assert isinstance(voice, GraphModel)
        # Random weights know no speaking rate; calibration, too, needs a real one.
        usual = Durations(voice).scale(200, 200 * FRAMES_PER_ID)
        config["inference"]["length_scale"] = usual
        beside.write_text(json.dumps(config), encoding="utf-8")
        made = voice.save(Path(temporary) / "made")
        for file in made.iterdir():
            shutil.copyfile(file, folder / file.name)


def _checkpoint(arguments: dict[str, Any]) -> dict[str, Any]:
    import torch
    from piper.train.vits.models import SynthesizerTrn

    torch.manual_seed(0)
    network = SynthesizerTrn(
        n_vocab=_SYMBOLS, spec_channels=513, segment_size=32, n_speakers=1, **arguments
    )
    with torch.no_grad():
        for parameter in network.parameters():
            if not parameter.any():  # flows begin as the identity; a trained one is none
                parameter.normal_(0, 0.1)
        # Speech has a root mean square about 0.1; what is inaudible has no log-mel distance.
        loudness = network.dec(torch.randn(1, arguments["inter_channels"], 50)).square().mean()
        network.dec.conv_post.weight *= 0.1 / loudness.sqrt()
    weights = {f"model_g.{name}": value for name, value in network.state_dict().items()}
    hyper = arguments | {"num_symbols": _SYMBOLS, "num_speakers": 1}
    return {"epoch": 0, "hyper_parameters": hyper, "state_dict": weights}


def _config(sample_rate: int) -> dict[str, Any]:
    """Return a voice's configuration as Piper's training writes it."""
    from piper.phoneme_ids import DEFAULT_PHONEME_ID_MAP

    # An untrained duration predictor turns Piper's usual noise_w of 0.8 into endless vowels.
    inference = {"noise_scale": 0.667, "length_scale": 1.0, "noise_w": 0.2}
    return {
        "audio": {"sample_rate": sample_rate, "quality": "random"},
        "espeak": {"voice": "en-us"},
        "inference": inference,
        "phoneme_type": "espeak",
        "phoneme_map": {},
        "phoneme_id_map": DEFAULT_PHONEME_ID_MAP,
        "num_symbols": _SYMBOLS,
        "num_speakers": 1,
        "speaker_id_map": {},
        "piper_version": "1.0.0",
    }


def _held(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the frames of each id: the output of the one `Ceil` of VITS.

    Raises:
        ModelError: There is none, or several.
    """
    ceils = [node for node in graph.node if node.op_type == "Ceil"]
    if len(ceils) != 1:
        raise ModelError(f"the graph has {len(ceils)} Ceil operators; a Piper voice has one")
    return {DURATIONS: ceils[0].output[0]}


def _sentences(voice: GraphModel, lengths: Lengths) -> list[Sentence]:
    return make_sentences(voice, lengths.seconds)


_RANDOM = tuple(
    BenchVoice(
        name=name,
        trained=False,
        spec=bound(_random_voice, name),
        sentences=_sentences,
        held=_held,
    )
    for name in _NETWORKS
)
_DEMO = BenchVoice(
    name="demo", trained=True, spec=lambda _: "demo", sentences=_sentences, held=_held
)
VOICES = (*_RANDOM, _DEMO)
