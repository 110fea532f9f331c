"""A voice of Piper's medium size, as most are, in `int8`: near to FP32 on every processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks.voices import open_voice
from tests.processors.emulation import NATIVE, Processor
from tests.processors.stage import DURATIONS, FP32, Stage, deciding, speaking
from tts_compress.compression import compress
from tts_compress.models.base import GraphModel
from tts_compress.onnx.noise import feed_noise
from tts_compress.recipes.family import find_recipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.processors

_LEAST_DB = 31
_UTTERANCES = 8
"""Calibrated on; it takes a second each."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Return the voice in FP32 and `int8`, with equal noise and the durations of FP32 natively."""
    folder: Path = tmp_path_factory.mktemp("medium")
    voice = open_voice("medium", folder)
    recipe = find_recipe("piper", "int8")
    assert recipe.calibration is not None
    few = recipe.calibration.model_copy(update={"utterances": _UTTERANCES})
    small = compress(voice, "int8", recipe=recipe.model_copy(update={"calibration": few}))
    assert isinstance(small, GraphModel)
    graphs = {FP32: feed_noise(voice.graph()), "int8": feed_noise(small.graph())}
    (call,) = voice.calibration_calls(["Hi."], seed=0)
    part = {FP32: deciding(graphs[FP32])}
    (own,) = Stage(folder, part, [call]).play(NATIVE)[FP32]
    told = call | {DURATIONS: own.reshape(1, 1, -1)}
    parts = {name: speaking(graph) for name, graph in graphs.items()}
    return Stage(tmp_path_factory.mktemp("stage"), parts, [told])


def test_int8_is_near_enough(
    stage: Stage, processor: Processor, snr_db: Callable[..., float]
) -> None:
    for which in (NATIVE, processor):
        played = stage.play(which)
        expected, found = (np.concatenate(played[name]) for name in (FP32, "int8"))
        assert snr_db(expected, found) >= _LEAST_DB, which.name
