"""The canary of a voice: which numbers are turned off for it."""

from typing import Any

import numpy as np

from tts_compress.export.stream import _without_noise


def test_numbers_that_scale_noise_are_turned_off_and_no_others() -> None:
    """Without its length there is no sound, and without its volume nothing is heard."""
    random = np.random.default_rng(0)

    def say(feeds: Any) -> Any:
        noise, length, volume = feeds["scales"]
        count = int(1000 * length)
        return volume * (np.sin(np.arange(count)) + noise * random.standard_normal(count))

    changed = _without_noise({"scales": np.array([0.6, 1.1, 0.8])}, ["scales"], say)
    assert changed["scales"].tolist() == [0.0, 1.1, 0.8]
