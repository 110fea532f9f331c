"""Piper's low, medium and high network with random weights, the demo voice, and their sentences."""

import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

from benchmarks.sentences import Sentence, run_request
from benchmarks.voices.voice import DURATIONS, BenchVoice, built
from tts_compress.errors import ModelError
from tts_compress.models import load
from tts_compress.models.base import GraphModel
from tts_compress.onnx.graph import with_outputs
from tts_compress.onnx.session import Feeds, open_session

_HOP = 256
"""Samples of a frame."""

FRAMES_PER_ID = 2.5
"""Frames of a phoneme id in Piper's English voices, pads between phonemes counted."""

# About 600 phoneme ids; written for this purpose and in no calibration set.
_TEXT = (
    "The keeper of the lighthouse counted seven ships before the fog rolled in from the west, "
    "and by noon the harbor bell was ringing for the fishermen who had gone out at dawn, while "
    "their children waited on the pier with lanterns, blankets, and a kettle of hot soup, "
    "because the old captain had told them that nobody comes home from the winter sea without "
    "a story, an empty stomach, and at least one frozen finger to complain about."
)


class Durations:
    """The frames that an FP32 voice with the one `Ceil` of VITS gives to phoneme ids."""

    def __init__(self, voice: GraphModel) -> None:
        graph = voice.graph()
        ceil = next(node for node in graph.graph.node if node.op_type == "Ceil")
        self._session = open_session(with_outputs(graph, ceil.output), voice.spec, 1)
        usual = next(voice.calibration_calls([_TEXT], seed=0))
        self._ids = tuple(int(value) for value in usual["input"][0])
        self._noise, _, self._duration_noise = (float(value) for value in usual["scales"])

    def ids(self, count: int) -> tuple[int, ...]:
        """Return the first phoneme ids of a text and its last, repeated where it is too short."""
        inner = self._ids[:-1] + self._ids[1:-1] * (count // len(self._ids))
        return (*inner[: count - 1], self._ids[-1])

    def scale(self, count: int, frames: float) -> float:
        """Return the length scale at which so many ids take so many frames."""

        def frames_at(scale: float) -> float:
            feeds = _feeds(self.ids(count), (self._noise, scale, 0.0))
            return float(self._session.run(None, feeds)[0].sum())

        return search_scale(frames_at, frames)

    def sentence(self, name: str, count: int, frames: float) -> Sentence:
        """Return so many ids of so many frames; runs are equally long."""
        ids, scale = self.ids(count), self.scale(count, frames)
        return Sentence(
            name=name,
            tokens=count,
            feeds=_feeds(ids, (self._noise, scale, self._duration_noise)),
            request=run_request(_feeds(ids, (self._noise, scale, 0.0))),
        )


def _feeds(ids: Sequence[int], scales: tuple[float, float, float]) -> Feeds:
    """Return the graph's inputs; the scales of noise, length and duration noise."""
    return {
        "input": np.array([ids], np.int64),
        "input_lengths": np.array([len(ids)], np.int64),
        "scales": np.array(scales, np.float32),
    }


def make_sentences(voice: GraphModel, seconds: Sequence[float]) -> list[Sentence]:
    """Return a sentence for each wanted length of audio."""
    durations = Durations(voice)
    sentences = []
    for wanted in seconds:
        frames = wanted * voice.sample_rate / _HOP
        count = max(3, round(frames / FRAMES_PER_ID))
        sentences.append(durations.sentence(f"{wanted:g} s", count, frames))
    return sentences


def search_scale(frames_at: Callable[[float], float], wanted: float) -> float:
    """Return the scale at which a function that grows with it comes closest to `wanted`."""
    low, high = 0.02, 50.0
    for _ in range(20):
        middle = (low * high) ** 0.5
        if frames_at(middle) < wanted:
            low = middle
        else:
            high = middle
    return min((low, high), key=lambda scale: abs(frames_at(scale) - wanted))


_HIGH: dict[str, Any] = {
    "resblock": "1",
    "resblock_kernel_sizes": (3, 7, 11),
    "resblock_dilation_sizes": ((1, 3, 5),) * 3,
    "upsample_rates": (8, 8, 2, 2),
    "upsample_initial_channel": 512,
    "upsample_kernel_sizes": (16, 16, 4, 4),
}
_NETWORKS: dict[str, tuple[int, dict[str, Any]]] = {
    "low": (16_000, {}),
    "medium": (22_050, {}),
    "high": (22_050, _HIGH),
}
"""Sample rates, and hyper-parameters that are not those of a medium voice."""


def random_network(changes: Mapping[str, Any]) -> Any:
    """Return Piper's network with seeded weights, by changes of a medium voice's parameters."""
    import torch
    from piper.train.vits.models import SynthesizerTrn

    from tts_compress.models.piper import _COMPUTED, _DEFAULTS

    hyper = _DEFAULTS | dict(changes)
    torch.manual_seed(0)
    network = SynthesizerTrn(
        n_vocab=hyper["num_symbols"],
        spec_channels=513,
        segment_size=32,
        n_speakers=hyper["num_speakers"],
        **{name: value for name, value in hyper.items() if name not in _COMPUTED},
    )
    with torch.no_grad():
        for parameter in network.parameters():
            if not parameter.any():  # flows begin as the identity; a trained one is none
                parameter.normal_(0, 0.1)
    return network


def training_weights(network: Any) -> dict[str, Any]:
    """Return the weights of a network by the names of a checkpoint of Piper's training."""
    return {f"model_g.{name}": value for name, value in network.state_dict().items()}


def voice_config(quality: str, sample_rate: int, noise_w: float) -> dict[str, Any]:
    """Return a voice's configuration as Piper's training writes it."""
    from piper.phoneme_ids import DEFAULT_PHONEME_ID_MAP

    return {
        "audio": {"sample_rate": sample_rate, "quality": quality},
        "espeak": {"voice": "en-us"},
        "inference": {"noise_scale": 0.667, "length_scale": 1.0, "noise_w": noise_w},
        "phoneme_type": "espeak",
        "phoneme_map": {},
        "phoneme_id_map": DEFAULT_PHONEME_ID_MAP,
        "num_symbols": 256,
        "num_speakers": 1,
        "speaker_id_map": {},
        "piper_version": "1.0.0",
    }


def _make(name: str, folder: Path) -> None:
    import torch

    sample_rate, changes = _NETWORKS[name]
    # An untrained duration predictor turns Piper's usual noise_w of 0.8 into endless vowels.
    config = voice_config("random", sample_rate, noise_w=0.2)
    with TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Piper's classes use torch's older weight norm
        checkpoint = Path(temporary) / f"{name}.ckpt"
        beside = checkpoint.with_name(f"{name}.ckpt.json")
        torch.save(_checkpoint(changes), checkpoint)
        beside.write_text(json.dumps(config), encoding="utf-8")
        voice = load(checkpoint)
        assert isinstance(voice, GraphModel)
        # Random weights have no speaking rate; calibration, too, needs a real one.
        usual = Durations(voice).scale(200, 200 * FRAMES_PER_ID)
        config["inference"]["length_scale"] = usual
        beside.write_text(json.dumps(config), encoding="utf-8")
        saved = voice.save(Path(temporary) / "made")
        for file in saved.iterdir():
            shutil.copyfile(file, folder / file.name)


def _checkpoint(changes: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    network = random_network(changes)
    with torch.no_grad():
        # Speech has a root mean square about 0.1; what is inaudible has no log-mel distance.
        channels = network.dec.conv_pre.in_channels
        loudness = network.dec(torch.randn(1, channels, 50)).square().mean()
        network.dec.conv_post.weight *= 0.1 / loudness.sqrt()
    weights = training_weights(network)
    return {"epoch": 0, "hyper_parameters": dict(changes), "state_dict": weights}


def _held(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the frames of each id: the output of the one `Ceil` of VITS."""
    ceils = [node for node in graph.node if node.op_type == "Ceil"]
    if len(ceils) != 1:
        raise ModelError(f"the graph has {len(ceils)} Ceil operators; a Piper voice has one")
    return {DURATIONS: ceils[0].output[0]}


_SPECS = {
    name: built(f"{name}.onnx", partial(_make, name), [Path(__file__)], ["torch", "piper-tts"])
    for name in _NETWORKS
}
VOICES = tuple(
    BenchVoice(
        name=name,
        trained=name == "demo",
        spec=_SPECS.get(name, lambda _: "demo"),
        sentences=lambda voice, lengths: make_sentences(voice, lengths.seconds),
        held=_held,
    )
    for name in (*_NETWORKS, "demo")
)
