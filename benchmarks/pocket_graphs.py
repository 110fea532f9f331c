"""Pocket-TTS in five graphs, as pocket-tts-onnx-export writes them, of the official package.

Caches and counters of the official modules become inputs and outputs `state_N` and `out_state_N`,
in the order of the modules' names: the language model's cache has room for 1,000 positions, the
codec's is a ring. The published ring has the length of the context; the one here has room for a
latent more, with which it says exactly what the package's own cache does.
"""

import io
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.voices.voice import export_graph
from tts_compress.config import data_file
from tts_compress.models.pocket.model import official
from tts_compress.models.pretrained import quiet

POSITIONS = 1_000
_PIECES = ("the quick brown fox jumps over a lazy dog.", "Hello there, how are you?", "Go on!")


def _append_linear(_: Any, key: Tensor, value: Tensor, state: dict[str, Tensor] | None) -> Any:
    """Return keys and values so far, `[B, H, T, D]`, their positions, and the first new one's."""
    if state is None:
        positions = torch.arange(key.shape[1]).view(1, -1)
        return key.transpose(1, 2), value.transpose(1, 2), positions, torch.zeros(1).long()
    if "end_offset" in state:
        return _append_to_ring(key, value, state)
    step, cache = state["step"], state["cache"].clone()
    end = step + key.shape[1]
    cache[0, :, step:end], cache[1, :, step:end] = key, value
    state["cache"], valid = cache, cache[:, :, :end]
    positions = torch.arange(valid.shape[2]).view(1, -1)
    return valid[0].transpose(1, 2), valid[1].transpose(1, 2), positions, step


def _append_to_ring(key: Tensor, value: Tensor, state: dict[str, Tensor]) -> Any:
    cache, end = state["cache"].clone(), state["end_offset"]
    capacity, count = cache.shape[3], key.shape[1]
    places = (end + torch.arange(count)) % capacity
    places = places.view(1, 1, -1, 1).expand(1, cache.shape[2], count, cache.shape[4])
    pair = [part.scatter(2, places, new.transpose(1, 2)) for part, new in zip(cache, (key, value))]  # noqa: B905
    last = end + count - 1
    delta = torch.arange(capacity) - last % capacity
    positions = last + torch.where(delta <= 0, delta, delta - capacity)
    state["cache"], state["end_offset"] = torch.stack(pair), end + count
    return pair[0], pair[1], positions.view(1, -1), state["offset"]


def _convolve(self: Any, x: Tensor, model_state: Any) -> Tensor:
    state = self.init_state(1, 0) if model_state is None else self.get_state(model_state)
    if (count := state["previous"].shape[-1]) == 0:
        return self.conv(x)  # type: ignore[no-any-return]
    previous = state["previous"]
    if self.pad_mode == "replicate":
        previous = torch.where(state["first"].view(-1, 1, 1), x[..., :1], previous)
        state["first"] = torch.zeros_like(state["first"])
    x = torch.cat([previous, x], -1)
    state["previous"] = x[..., -count:]
    return self.conv(x)  # type: ignore[no-any-return]


def _transpose(self: Any, x: Tensor, model_state: Any) -> Tensor:
    state, y = self.get_state(model_state), self.convtr(x)
    if (count := state["partial"].shape[-1]) == 0:
        return y  # type: ignore[no-any-return]
    y = torch.cat([y[..., :count] + state["partial"], y[..., count:]], -1)
    rest, bias = y[..., -count:], self.convtr.bias
    state["partial"] = rest if bias is None else rest - bias[:, None]
    return y[..., :-count]


def _mask(count: int, context: int | None, _: Any) -> Tensor:
    positions = torch.arange(count).view(1, -1)
    masked: Tensor = official("modules.attention")._build_attention_mask(  # noqa: SLF001
        positions, positions, context
    )
    return masked


@contextmanager
def _functional() -> Iterator[None]:
    """Let the official modules return their states where they write into them."""
    attention, conv = official("modules.attention"), official("modules.conv")
    backend = attention._LinearKVCacheBackend  # noqa: SLF001

    def offset(_: Any, state: Any, *__: Any) -> Tensor:
        return torch.zeros(()) if state is None else state.get("step", state.get("offset"))[0]

    def pad(x: Tensor, _: int, stride: int) -> Tensor:
        return functional.pad(x, (0, (-x.shape[-1]) % stride))

    changes = (
        (backend, "append_and_get", _append_linear),
        (backend, "rope_offset", offset),
        (conv.StreamingConv1d, "forward", _convolve),
        (conv.StreamingConvTranspose1d, "forward", _transpose),
        (official("modules.transformer"), "_cached_causal_mask", _mask),
        (official("models.mimi"), "pad_for_conv1d", pad),
    )
    with ExitStack() as stack, warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        for place, name, changed in changes:
            stack.enter_context(patch.object(place, name, changed))
        yield


def _states(module: nn.Module, ring: int | None) -> dict[str, dict[str, Tensor]]:
    """Return the states that speech begins with, by module; caches as the exporter has them."""
    found = official("modules.stateful_module").init_states(module, 1, ring or POSITIONS)
    for state in found.values():
        if "cache" in state:
            zero, cache = torch.zeros(1, dtype=torch.int64), torch.zeros_like(state["cache"])
            state.clear()
            if ring is None:
                state.update(cache=cache, current_end=torch.zeros(0), step=zero)
            else:
                state.update(cache=cache.transpose(2, 3), end_offset=zero, offset=zero)
    return {name: dict(sorted(found[name].items())) for name in sorted(found)}


class _Stateful(nn.Module):
    """A part of the official object whose states are inputs and outputs."""

    def __init__(self, root: Any, module: nn.Module, ring: int | None = None) -> None:
        super().__init__()
        self.root, self.ring = root, ring
        self.begin = _states(module, ring)

    def inputs(self) -> dict[str, Tensor]:
        """Return the states that speech begins with, by the graph's names."""
        tensors = (tensor for state in self.begin.values() for tensor in state.values())
        return {f"state_{number}": tensor for number, tensor in enumerate(tensors)}

    def unflatten(self, states: Iterable[Tensor]) -> Any:
        """Return states as the official modules look for them."""
        rest = iter(states)
        return {name: {key: next(rest) for key in keys} for name, keys in self.begin.items()}

    def flatten(self, states: Any, counter: str, count: int) -> tuple[Tensor, ...]:
        """Return states in the graph's order, having counted what was read."""
        for state in states.values():
            if "cache" in state:
                state[counter] = state[counter] + count
        return tuple(states[name][key] for name, keys in self.begin.items() for key in keys)


class Main(_Stateful):
    """The language model: what it reads, by a head that ends speech."""

    def forward(self, sequence: Tensor, text: Tensor, *flat: Tensor) -> tuple[Tensor, ...]:
        """Return conditioning `[1, D]`, the log-odds of the end, and states."""
        lm, states = self.root.flow_lm, self.unflatten(flat)
        sequence = torch.where(torch.isnan(sequence), lm.bos_emb, sequence)
        read = torch.cat([text, lm.input_linear(sequence)], 1)
        out = lm.out_norm(lm.transformer(read, states))[:, text.shape[1] :]
        # Where it only reads, there is nothing to return.
        first = torch.cat([out, torch.zeros(1, 1, lm.dim)], 1)[:, 0]
        count = sequence.shape[1] + text.shape[1]
        return first, lm.out_eos(first), *self.flatten(states, "step", count)


class Decoder(_Stateful):
    """The codec's decoder."""

    def forward(self, latent: Tensor, *flat: Tensor) -> tuple[Tensor, ...]:
        """Return audio `[1, 1, T * 1920]` of latents `[1, T, 32]`, and states."""
        root, states = self.root, self.unflatten(flat)
        latent = latent * root.flow_lm.emb_std + root.flow_lm.emb_mean
        audio = root.mimi.decode_from_latent(latent, states)
        return audio, *self.flatten(states, "offset", latent.shape[1] * _steps(root))


class Encoder(nn.Module):
    """The codec's encoder, and the projection of what it hears."""

    def __init__(self, root: Any) -> None:
        super().__init__()
        self.root = root

    def forward(self, audio: Tensor) -> Tensor:
        """Return embeddings, shape `[1, T, D]`, of samples `[1, 1, S]`."""
        heard = self.root.mimi.encode_to_latent(audio)
        return functional.linear(heard, self.root.flow_lm.speaker_proj_weight)


def write_graphs(root: Any, folder: Path) -> Path:
    """Write an official object's graphs and contract, and return the one that tokens go into."""
    lm = root.flow_lm
    # The exporter of torch loses one of two gains that are equal, as those of trained weights never
    # are.
    for norm in (embedder.mlp[-1] for embedder in lm.flow_net.time_embed):
        nn.init.normal_(norm.alpha, 1, 0.01)
    ring = root.config.mimi.transformer.context + _steps(root)
    main, decoder = Main(root, lm), Decoder(root, root.mimi, ring)
    one, wide = torch.zeros(1, 1), torch.randn(1, 3, lm.dim)
    latent = torch.randn(1, 1, lm.ldim)
    spoken: Mapping[str, Any] = {"sequence": latent, "text_embeddings": wide, **main.inputs()}
    written: dict[str, tuple[Any, Mapping[str, Any], dict[str, dict[int, str]]]] = {
        "text_conditioner": (
            lm.conditioner,
            {"token_ids": torch.ones(1, 5, dtype=torch.int64)},
            {"token_ids": {1: "seq_len"}, "embeddings": {1: "seq_len"}},
        ),
        "mimi_encoder": (
            Encoder(root),
            {"audio": torch.randn(1, 1, 3 * root.mimi.frame_size)},
            {"audio": {2: "audio_len"}, "latents": {1: "frames"}},
        ),
        "flow_lm_main": (
            main,
            spoken,
            {"sequence": {1: "seq_len"}, "text_embeddings": {1: "text_len"}}
            | {"conditioning": {}, "eos_logit": {}, **_returned(main)},
        ),
        "flow_lm_flow": (
            lm.flow_net,
            {"c": wide[:, 0], "s": one, "t": one + 1, "x": latent[:, 0]},
            {name: {0: "batch"} for name in ("c", "s", "t", "x", "flow_dir")},
        ),
        "mimi_decoder": (
            decoder,
            {"latent": latent, **decoder.inputs()},
            {"latent": {1: "seq_len"}, "audio_frame": {}, **_returned(decoder)},
        ),
    }
    with _functional(), torch.no_grad():
        for name, (module, inputs, axes) in written.items():
            export_graph(module, inputs, axes, folder / f"{name}.onnx")
    np.save(folder / "bos_before_voice.npy", lm.bos_before_voice.detach().numpy())
    (folder / "tokenizer.model").write_bytes(_tokenizer())
    stated = data_file("calib/contracts", "pocket-tts").read_text("utf-8")
    sizes = {" 32]": f" {lm.ldim}]", "1024": lm.dim, "24000": root.sample_rate}
    for published, size in sizes.items():
        stated = stated.replace(published, str(size))
    (folder / "contract.toml").write_text(stated, encoding="utf-8")
    return folder / "text_conditioner.onnx"


def _returned(module: _Stateful) -> dict[str, dict[int, str]]:
    return {f"out_{name}": {} for name in module.inputs()}


def _steps(root: Any) -> int:
    return int(root.mimi.encoder_frame_rate // root.mimi.frame_rate)


def _tokenizer() -> bytes:
    """Return a small model of SentencePiece, whose ids every table of texts has."""
    from sentencepiece import SentencePieceTrainer

    file = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(_PIECES),
        model_writer=file,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return file.getvalue()
