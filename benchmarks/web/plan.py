"""A voice in FP32 and INT8, with inputs that every runtime is given alike, as files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.fidelity import bake, run_held
from benchmarks.voices import VOICES
from tts_compress.audio import Samples
from tts_compress.compression import compress
from tts_compress.errors import ModelError
from tts_compress.models import load
from tts_compress.models.base import GraphModel
from tts_compress.onnx.noise import feed_noise, noise_inputs
from tts_compress.onnx.session import Feeds, open_session, run_session
from tts_compress.recipes.recipe import find_recipe

REFERENCE = "fp32"
TEXT = "The quick brown fox jumps over the lazy dog, and nobody was surprised."

_NOISE = 4096
"""Values of each noise input, read again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Files of voices, and what onnxruntime makes of them here."""

    folder: Path
    """Holds `plan.json`, and of every voice `<name>.onnx` and `<name>.fed.onnx`, the same graph
    with noise as inputs and the durations of FP32."""

    voices: tuple[str, ...]
    ids: tuple[int, ...]
    scales: tuple[float, ...]
    """Without noise, so that every run takes the same durations."""

    rounds: int
    feeds: Feeds
    sounds: Mapping[str, Samples]
    """Output of the fed graphs in onnxruntime here."""

    sample_rate: int


def write_plan(spec: str, folder: Path, *, rounds: int, utterances: int | None = None) -> Plan:
    """Compress a Piper voice in both formats; write what players need."""
    original = load(spec)
    if original.family != "piper" or not isinstance(original, GraphModel):
        raise ModelError(f"'{spec}' is no Piper voice, and only these are played here")
    voices = {REFERENCE: original}
    for name, form in (("int8", "qoperator"), ("int8-qdq", "qdq")):
        voices[name] = _compressed(original, form, utterances)
    (call, *_) = original.calibration_calls([TEXT], seed=0)
    inputs = {name: call[name] for name in ("input", "input_lengths", "scales")}
    quiet = (0.0, float(call["scales"][1]), 0.0)
    inputs["scales"] = np.array(quiet, np.float32)
    feeds = inputs | {name: call[name][:_NOISE] for name in noise_inputs(list(call))}
    held, fed = VOICES["demo"].held, feed_noise(original.graph())
    durations = run_held(fed, held(fed.graph), None, feeds, spec)[1]
    sounds = {}
    for name, voice in voices.items():
        onnx.save(voice.graph(), folder / f"{name}.onnx")
        graph = feed_noise(voice.graph())
        fed = bake(graph, held(graph.graph), durations, name)
        onnx.save(fed, folder / f"{name}.fed.onnx")
        session = open_session(fed, name, threads=1)
        sounds[name] = np.asarray(run_session(session, feeds, name)[0], np.float32).reshape(-1)
    plan = Plan(
        folder=folder,
        voices=tuple(voices),
        ids=tuple(call["input"].reshape(-1).tolist()),
        scales=quiet,
        rounds=rounds,
        feeds=feeds,
        sounds=sounds,
        sample_rate=original.sample_rate,
    )
    (folder / "plan.json").write_text(json.dumps(_document(plan)), encoding="utf-8")
    return plan


def _compressed(voice: GraphModel, form: str, utterances: int | None) -> GraphModel:
    recipe = find_recipe("piper", "int8")
    calibration = recipe.calibration
    if utterances is not None and calibration is not None:
        calibration = calibration.model_copy(update={"utterances": utterances})
    changes = {"format": form, "calibration": calibration}
    small = compress(voice, "int8", recipe=recipe.model_copy(update=changes), quality="fast")
    assert isinstance(small, GraphModel)
    return small


def _document(plan: Plan) -> dict[str, Any]:
    stated = {name: getattr(plan, name) for name in ("voices", "ids", "scales", "rounds")}
    feeds = {
        name: {"type": str(v.dtype), "dims": list(v.shape), "data": v.reshape(-1).tolist()}
        for name, v in plan.feeds.items()
    }
    return stated | {"feeds": feeds}
