"""Pocket-TTS 100M as its release is built, with random weights: whole speech, its start, its codec.

The official object runs three threads: for times of one thread keep the process on one core.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from benchmarks.networks.network import Call, Network, Step, network

_RELEASE = "english_2026-10"
_TEXT = (
    "The quick brown fox jumps over the lazy dog, and then it walks home through the rain "
    "to its bed now."
)
"""100 characters."""

_LETTERS_PER_TOKEN = 4
_SECONDS = 6.25
"""Length of the whole speech: 16 characters each second."""

_VOICE_S = 5
_LATENTS = 16


def build_release(name: str) -> Any:
    """Return the official object of a release with random weights and a tokenizer of the text."""
    from tts_compress.models.pocket.model import PocketSource, build, releases
    from tts_compress.models.pretrained import quiet

    settings = PocketSource(config=releases() / f"{name}.yaml").settings.model_copy(deep=True)
    table = settings.flow_lm.lookup_table
    with tempfile.TemporaryDirectory() as folder, quiet():
        path = Path(folder, "tokenizer.json")
        _write_tokenizer(path, table.n_bins)
        table.tokenizer, table.tokenizer_path = "tokenizers", str(path)
        return build(settings)


def _make() -> nn.Module:
    """Return the official object, which draws no noise and does not end before its bound."""
    root = build_release(_RELEASE)
    root.temp, root.eos_threshold = 0.0, float("inf")
    return root  # type: ignore[no-any-return]


def _write_tokenizer(path: Path, rows: int) -> None:
    import tokenizers

    starts = range(0, len(_TEXT), _LETTERS_PER_TOKEN)
    pieces = [_TEXT[start : start + _LETTERS_PER_TOKEN] for start in starts]
    known = dict.fromkeys(["<unk>", *pieces, *(f"<{number}>" for number in range(rows))])
    ids = {piece: number for number, piece in enumerate(list(known)[:rows])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, "<unk>"))
    window = tokenizers.Regex(f".{{1,{_LETTERS_PER_TOKEN}}}")
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(window, "isolated")
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.save(str(path))


def _speaking(seconds: float) -> Call:
    from tts_compress.models.pretrained import quiet

    def call(root: Any) -> Step:
        # Its own threads know nothing of inference mode, whose tensors they cannot change.
        with torch.inference_mode(mode=False), torch.no_grad():
            voice = torch.randn(1, _VOICE_S * root.sample_rate, generator=_generator()) / 10
            state = root.get_state_for_audio_prompt(voice)
        frames = max(round(seconds * root.config.mimi.frame_rate), 1)

        def step() -> torch.Tensor:
            vars(root)["_estimate_max_gen_len"] = lambda _: frames
            with torch.inference_mode(mode=False), quiet():
                return torch.cat(list(root.generate_audio_stream(state, _TEXT)))

        return step

    return call


def decode(root: Any, latents: torch.Tensor, at_once: int) -> torch.Tensor:
    """Return the samples that the codec makes of latents `[1, S, D]`, so many in each call."""
    from tts_compress.models.pocket.model import official

    states = official("modules.stateful_module")
    steps = round(root.mimi.encoder_frame_rate / root.mimi.frame_rate)
    state = states.init_states(root.mimi, 1, sequence_length=steps * latents.shape[1])
    heard = []
    for part in torch.split(latents, at_once, 1):
        heard.append(root.mimi.decode_from_latent(part, state)[0, 0])
        states.increment_steps(root.mimi, state, increment=steps * part.shape[1])
    return torch.cat(heard)


def _decoding(root: Any) -> Step:
    latents = torch.randn(1, _LATENTS, root.flow_lm.ldim, generator=_generator())
    return lambda: decode(root, latents, 1)


def _stepping(positions: int, *, rounded: bool) -> Call:
    def call(root: Any) -> Step:
        from tts_compress.models.pocket.model import official

        states, attention = official("modules.stateful_module"), official("modules.attention")
        lm, append = root.flow_lm, RoundedCaches().append if rounded else attention.complete_kv
        state = states.init_states(lm, 1, positions + 1)
        read = torch.randn(1, positions + 1, lm.dim, generator=_generator())
        with torch.inference_mode():
            lm.transformer(read[:, :-1], state)
            states.increment_steps(lm, state, positions)

        def step() -> torch.Tensor:
            with patch.object(attention, "complete_kv", append):
                heard: torch.Tensor = lm.transformer(read[:, -1:], state)
            return heard

        return step

    return call


class RoundedCaches:
    """Keys and values in INT8 with a scale for each position and head, which torch multiplies."""

    def __init__(self) -> None:
        self._rounded: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def append(
        self, cache: torch.Tensor, offset: torch.Tensor, *new: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return keys and values so far, `[B, T, H, D]`; at first those in FP32 are rounded."""
        start = int(offset[0])
        end = start + new[0].shape[1]
        if cache.data_ptr() not in self._rounded:
            self._rounded[cache.data_ptr()] = _rounded(cache.nan_to_num())
        codes, scales = self._rounded[cache.data_ptr()]
        codes[:, :, start:end], scales[:, :, start:end] = _rounded(torch.stack(new))
        return (codes[:, :, :end] * scales[:, :, :end]).unbind()


def _rounded(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scales = values.abs().amax(-1, keepdim=True).clamp_min(1e-9) / 127
    return (values / scales).round().to(torch.int8), scales


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(2)


def _register(name: str, summary: str, call: Call) -> Callable[[], Network]:
    return network(name, "pocket-tts", summary)(lambda: Network(make=_make, call=call))


_register("pocket", "Pocket-TTS 100M: 100 characters, 6.2 s of audio", _speaking(_SECONDS))
_register("pocket-first", "Pocket-TTS 100M: 100 characters, first 80 ms of audio", _speaking(0))
for _positions in (300, 1500):
    _step = f"Pocket-TTS 100M: a step of its language model after {_positions} positions"
    _register(f"pocket-{_positions}", _step, _stepping(_positions, rounded=False))
    _cached = _stepping(_positions, rounded=True)
    _register(f"pocket-{_positions}-int8-cache", f"{_step}, keys and values in INT8", _cached)
_register("pocket-codec", "Pocket-TTS 100M: its codec, 16 latents, 1.3 s of audio", _decoding)
