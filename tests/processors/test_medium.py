"""A voice of Piper's medium size, as most are, in `int8`: near to FP32 on every processor."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.voices import open_voice
from tests.measures import snr_db
from tests.processors.emulation import NATIVE, Processor
from tests.processors.stage import FP32, Stage, speaking, told_briefly
from tts_compress.compression import compress
from tts_compress.onnx.noise import feed_noise
from tts_compress.recipes.recipe import find_recipe

pytestmark = pytest.mark.processors

_LEAST_DB = 31
_UTTERANCES = 4
"""Calibrated on; it takes a second each."""


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stage, Stage]:
    """Return the voice in FP32, and in `int8`, with equal noise and durations."""
    voice = open_voice("medium", tmp_path_factory.mktemp("medium"))
    recipe = find_recipe("piper", "int8")
    assert recipe.calibration is not None
    few = recipe.calibration.model_copy(update={"utterances": _UTTERANCES})
    recipe = recipe.model_copy(update={"calibration": few})
    small: Any = compress(voice, "int8", recipe=recipe, quality="fast")
    (call,) = voice.calibration_calls(["Hi there."], seed=0)
    reference, candidate = (
        Stage(
            tmp_path_factory.mktemp(name),
            {name: speaking(feed_noise(model.graph()))},
            [told_briefly(call)],
        )
        for name, model in ((FP32, voice), ("int8", small))
    )
    return reference, candidate


def test_int8_is_near_enough(stages: tuple[Stage, Stage], processor: Processor) -> None:
    """FP32, which is the same everywhere, is this machine's."""
    reference, candidate = stages
    (expected,) = reference.play(NATIVE)[FP32]
    for which in (NATIVE, processor):
        (found,) = candidate.play(which)["int8"]
        assert snr_db(expected, found) >= _LEAST_DB, which.name
