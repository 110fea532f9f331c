"""`python -m benchmarks.pocket_pauses`: the floor of pauses of Pocket-TTS's codec in integers.

No trained codec is at hand, so the decoder of the release of 2M parameters, and latents for it, are
trained for some minutes on sentences of the demo voice with pauses between them.
"""

import sys
from argparse import Namespace
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.command import command
from benchmarks.networks.pocket import build_release, decode
from benchmarks.report import table
from tts_compress import find_recipe, load
from tts_compress.audio import resample
from tts_compress.progress import Silent
from tts_compress.recipes.recipe import Recipe
from tts_compress.torch.convert import convert

_RATE = 24_000
_FRAME = 1920
_SENTENCES = ("good morning", "the coffee is ready", "please call again", "a quiet day")
_PAUSE_S, _FLOOR_DB = 0.5, -80
_CROP = 9
_OCTAVES_HZ = (375, 750, 1500, 3000, 6000)
_WINDOW = 480
_QUIET = 10 ** (-70 / 20)

Samples = npt.NDArray[np.float64]


def _speech() -> Samples:
    """Return sentences with pauses, in which there is faint noise."""
    voice: Any = load("demo")
    parts: list[Samples] = []
    for sentence in _SENTENCES:
        spoken = voice.synthesize(sentence, seed=0)
        said = resample(spoken.samples, spoken.sample_rate, _RATE).astype(np.float64)
        loud = np.flatnonzero(np.abs(said) > 0.02 * np.abs(said).max())
        said = said[loud[0] : loud[-1]]
        ramp = np.minimum(np.arange(len(said)), np.arange(len(said))[::-1]) / 240
        parts += [said * np.minimum(1, ramp), np.zeros(round(_PAUSE_S * _RATE))]
    samples = np.concatenate(parts)
    samples *= 0.5 / np.abs(samples).max()
    samples += np.random.default_rng(0).standard_normal(len(samples)) * 10 ** (_FLOOR_DB / 20)
    return samples[: len(samples) // _FRAME * _FRAME]


def _train(root: Any, target: Tensor, seconds: float) -> Tensor:
    """Train the codec's decoder in place, and the latents that it makes a sound of; return them."""
    frames = len(target) // _FRAME
    torch.manual_seed(0)
    latents = torch.nn.Parameter(torch.randn(1, frames, root.flow_lm.ldim))
    weights = [*root.mimi.decoder.parameters(), *root.mimi.decoder_transformer.parameters()]
    weights += [*root.mimi.upsample.parameters(), *root.mimi.quantizer.parameters()]
    groups = [{"params": weights, "lr": 2e-3}, {"params": [latents], "lr": 3e-2}]
    optimizer = torch.optim.Adam(groups, betas=(0.8, 0.95))
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9992)
    start = monotonic()
    while monotonic() - start < seconds:
        first = int(torch.randint(0, frames - _CROP + 1, (1,)))
        before = max(first - 2, 0)
        crop = decode(root, latents[:, before : first + _CROP], _CROP + 2)
        sound = crop[(first - before) * _FRAME :]
        loss = _distance(sound, target[first * _FRAME : (first + _CROP) * _FRAME])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        decay.step()
    return latents.detach()


def _distance(sound: Tensor, target: Tensor) -> Tensor:
    """Return the distance of two sounds, in which pauses count as much as speech."""
    total = 20 * (sound - target).abs().mean()
    for size in (256, 1024):
        window = torch.hann_window(size)
        spectra = [
            torch.stft(x, size, size // 4, window=window, return_complex=True).abs()
            for x in (sound, target)
        ]
        total = total + (torch.log(spectra[0] + 1e-3) - torch.log(spectra[1] + 1e-3)).abs().mean()
    return total


def _floors_db(samples: Samples, target: Samples) -> Samples:
    """Return the level of each octave where the target pauses, relative to its speech, dB."""
    count = len(target) // _WINDOW
    level = np.sqrt(np.square(target[: count * _WINDOW].reshape(count, -1)).mean(1))
    quiet = level < _QUIET
    inner = quiet.copy()
    for shift in (-2, -1, 1, 2):  # frames beside speech hold its echo
        inner &= np.roll(quiet, shift)
    frames = samples[: count * _WINDOW].reshape(count, -1) * np.hanning(_WINDOW)
    power = np.square(np.abs(np.fft.rfft(frames, axis=1)))
    frequencies = np.fft.rfftfreq(_WINDOW, 1 / _RATE)
    octaves = [(frequencies >= low) & (frequencies < 2 * low) for low in _OCTAVES_HZ]
    loudness = power.sum(1)[~quiet].mean()
    return np.array(
        [10 * np.log10(power[inner][:, band].sum(1).mean() / loudness) for band in octaves]
    )


def _codec_rule(recipe: Recipe, **changes: Any) -> Recipe:
    rules = (
        rule.model_copy(update=changes) if rule.match.startswith("mimi.decoder.") else rule
        for rule in recipe.component
    )
    return recipe.model_copy(update={"component": tuple(rules)})


def _recipes() -> dict[str, Recipe]:
    int8, bf16 = find_recipe("pocket-tts", "int8"), find_recipe("pocket-tts", "bf16")
    floats: Any = {"weights": "bfloat16", "activations": "bfloat16"}
    return {
        "int8": int8,
        "int8, the layers of the 100M model": _codec_rule(int8, min_channels=24),
        "int8, all convolutions but the last": _codec_rule(int8, min_channels=4, min_kernel=1),
        "bf16": bf16,
        "bf16, also convolutions": _codec_rule(bf16, **floats),
    }


@command(
    "benchmarks.pocket_pauses",
    lambda add: add("--seconds", type=float, default=420, help="of training (%(default)s)"),
)
def main(options: Namespace) -> None:
    """Train a small codec on speech with pauses, and show how the floor of pauses rises."""
    target = _speech()
    root = build_release("english_2m_2026-10")
    latents = _train(root, torch.from_numpy(target).float(), options.seconds)

    def floors(decoder: Any, at_once: int) -> Samples:
        with torch.no_grad():
            return _floors_db(decode(decoder, latents, at_once).double().numpy(), target)

    sizes = (1, 4, latents.shape[1])
    plain = {size: floors(root, size) for size in sizes}
    rows = []
    for name, recipe in _recipes().items():
        small = convert(root, recipe, None, progress=Silent()).root
        rises = [(floors(small, size) - plain[size]).max() for size in sizes]
        rows.append([name, *(f"{rise:.1f} dB" for rise in rises)])
    print("\n".join(table(("latents a call", *map(str, sizes)), rows)))


if __name__ == "__main__":
    sys.exit(main())
