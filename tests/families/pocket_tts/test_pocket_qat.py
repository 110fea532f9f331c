"""Training of Pocket-TTS by the official package, along the latents that it spoke."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress import load
from tts_compress.compression import compress
from tts_compress.models.base import SteppedLatentModel
from tts_compress.models.pocket.model import PocketModel
from tts_compress.torch.layers.module_surgery import intercepted

TEXTS = tuple(f"say {number}" for number in ("one", "two", "three", "four"))


@pytest.mark.slow
def test_text_and_latents_read_at_once_give_what_the_steps_give(tiny_pocket: PocketModel) -> None:
    """In two parts, each of which the package reads token by token into the same caches."""
    text = "One two three four five. Six seven eight nine and ten."
    latents = tiny_pocket.generate_latents(text, seed=2)
    assert isinstance(tiny_pocket, SteppedLatentModel)
    root, seen = tiny_pocket.root(), list[Any]()
    lm: Any = root.get_submodule("flow_lm")

    def note(backbone: Callable[..., Any], *arguments: Any) -> Any:
        seen.append(backbone(*arguments))
        return seen[-1]

    with intercepted(lm, "backbone", note):
        tiny_pocket.read_at_once(text, latents)
    assert len(seen) == 2
    stops = np.concatenate([lm.out_eos(rows)[0, :, 0].detach().numpy() for rows in seen])
    assert np.allclose(stops, tiny_pocket.read_latents(text, latents).stop, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "learning_rate", "share"), [("int4-weight-only", 1e-3, 0.7), ("int8-qat", 1e-4, 1.0)]
)
def test_a_voice_learns_along_what_it_spoke(
    tiny_pocket: PocketModel,
    train_on: Callable[..., Callable[..., Any]],
    tmp_path: Path,
    scheme: str,
    learning_rate: float,
    share: float,
) -> None:
    """It then answers nearer to the original, on a text that it was not trained on."""
    train = train_on(tiny_pocket, TEXTS, steps=24, learning_rate=learning_rate)
    rounded, trained = compress(tiny_pocket, scheme.replace("qat", "dynamic")), train(scheme)
    terms = trained.manifest.training
    assert {"flow_lm.flow_net/mse", "mimi.decoder/waveform"} <= terms.after.keys()
    assert terms.after["flow_lm.backbone/mse"] < share * terms.before["flow_lm.backbone/mse"]
    said = tiny_pocket.generate_latents("one more", seed=1)
    voices: list[Any] = [tiny_pocket, rounded, trained]
    answers = [v.read_latents("one more", said) for v in voices]
    errors = [np.abs(answer.latents - answers[0].latents).mean() for answer in answers[1:]]
    assert errors[1] < (1 + share) / 2 * errors[0]
    again: Any = load(f"pocket-tts:{trained.save(tmp_path / 'trained')}")
    root = again.root()
    official = root.generate_audio(root.get_state_for_audio_prompt(again.prompt.audio), "one more")
    assert len(official) > 0
    assert bool(official.isfinite().all())
    spoken = [v.synthesize("one more", seed=0).samples for v in (trained, again)]
    np.testing.assert_array_equal(*spoken)
