"""GPT-SoVITS as upstream's own `TTS.run` speaks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tts_compress.models.gpt_sovits import GptSovitsModel


def test_it_speaks(tiny: GptSovitsModel) -> None:
    audio = tiny.synthesize("please call again at ten", seed=0)
    assert audio.sample_rate == tiny.sample_rate == 32000
    assert np.isfinite(audio.samples).all()
    assert audio.samples.std() > 0.01
