"""Sentences of a wanted length, and the requests to `benchmarks.worker` that speak them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tts_compress.models.base import GraphModel
from tts_compress.onnx.noise import noise_inputs
from tts_compress.onnx.session import Feeds

_SEED = 16
_IDS = 40
"""Random ids are below, which the vocabularies of all voices have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Wanted lengths; a voice takes the one whose unit it knows."""

    seconds: tuple[float, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """Input of a voice."""

    name: str
    tokens: int
    feeds: Feeds
    """Inputs of the first graph, without fed noise, for comparing sounds."""

    request: Mapping[str, Any]
    """The request to the worker, as JSON, for a run that is timed."""


def run_request(feeds: Feeds) -> dict[str, Any]:
    """Return the request that runs a voice of one graph on inputs."""
    values = {name: [str(value.dtype), value.tolist()] for name, value in feeds.items()}
    return {"do": "run", "feeds": values}


def speak_request(text: str) -> dict[str, Any]:
    """Return the request that lets a voice speak a text, all its graphs and their host code."""
    return {"do": "speak", "text": text}


def feeds_of(voice: GraphModel, text: str) -> Feeds:
    """Return the inputs of a voice's first graph for a text, without fed noise."""
    [call] = voice.calibration_calls([text], seed=0)
    noise = set(noise_inputs(list(call)))
    return {name: value for name, value in call.items() if name not in noise}


def id_sentences(voice: GraphModel, lengths: Lengths) -> list[Sentence]:
    """Return sentences of random ids, not counting what a voice's contract adds to them."""
    random = np.random.default_rng(_SEED)
    sentences = []
    for count in lengths.tokens:
        text = "ids: " + " ".join(map(str, random.integers(1, _IDS, count)))
        feeds = feeds_of(voice, text)
        tokens = max(value.size for value in feeds.values() if value.dtype.kind == "i")
        request = speak_request(text)
        sentence = Sentence(name=f"{count} tokens", tokens=tokens, feeds=feeds, request=request)
        sentences.append(sentence)
    return sentences
