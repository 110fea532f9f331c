"""A tiny ONNX voice that is a language model: prefill, decode with a cache, decoder of tokens."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from tts_compress.models.graph_file import SharedWeights

WIDTH, HEADS, LAYERS, VOCABULARY, STOP, HOP = 64, 2, 2, 64, 63, 64

CONTRACT = """
version = 1
name = "tiny-lm"
sample_rate = 16000
language = "en-us"
[tokens]
source = "characters"
vocabulary = { 1 = " abcdefghijklmnopqrstuvwxyz.,'" }
eos = 31
[input.ids]
role = "tokens"
[sample.token]
logits = "logits"
last = true
temperature = 0.9
top_k = 40
[until.speech]
output = "token"
token = 63
longest = 40
[size.past]
output = "present_key_0"
axis = 2
[[then]]
graph = "decode.onnx"
loop = "speech"
sample.token = { logits = "logits", temperature = 0.9, top_k = 40 }
[then.input.token]
role = "output"
[then.input.position]
role = "lengths"
size = "past"
[then.input."past_*"]
role = "state"
output = "present_*"
[[then]]
graph = "decoder.onnx"
[then.input.codes]
role = "output"
output = "token"
join = 1
"""


class Block(nn.Module):
    """Attention over what was read before, and a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, past: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the result, shape `[1, L, D]`, and all keys and values, `[1, H, P + L, D / H]`."""
        parts = self.qkv(self.norm(x)).reshape(1, -1, 3, HEADS, WIDTH // HEADS).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        if past:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        scores = query @ key.transpose(2, 3) / math.sqrt(WIDTH // HEADS)
        if not past:
            scores = scores + torch.ones_like(scores).triu(1) * -1e4
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(1, -1, WIDTH)
        x = x + self.out(mixed)
        return x + self.down(torch.relu(self.up(self.norm2(x)))), key, value


class LanguageModel(nn.Module):
    """A decoder of tokens as GPT has it, at a tiny size."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(512, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.head.bias.data[STOP] += 1.0
        self.register_buffer("begins", torch.eye(VOCABULARY)[STOP] * -100)

    def forward(self, ids: Tensor, position: Tensor | None = None, *past: Tensor) -> Any:
        """Return the scores of the next tokens, shape `[1, L, V]`, and all keys and values."""
        # Speech never ends before it begins.
        bias = self.begins if position is None else 0
        places = torch.arange(ids.shape[1])[None] if position is None else position[None]
        x, states = self.embedding(ids) + self.positions(places), list[Tensor]()
        for number, block in enumerate(self.blocks):
            x, *pair = block(x, past[2 * number : 2 * number + 2])
            states += pair
        return self.head(self.norm(x)) + bias, *states


class Decoder(nn.Module):
    """Sound of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.up = nn.ConvTranspose1d(WIDTH, 1, HOP, HOP)

    def forward(self, codes: Tensor) -> Tensor:
        """Return audio, shape `[1, 1, T * HOP]`, of tokens `[1, T]`."""
        x = self.embedding(codes).transpose(1, 2)
        return torch.tanh(self.up(torch.nn.functional.leaky_relu(self.convolution(x), 0.1)))


def export(
    module: nn.Module, inputs: Mapping[str, Tensor], outputs: Sequence[str], axes: Any, path: Path
) -> onnx.ModelProto:
    """Return a module as a graph."""
    torch.onnx.export(
        module.eval(),
        tuple(inputs.values()),
        str(path),
        dynamo=False,
        input_names=[*inputs],
        output_names=[*outputs],
        dynamic_axes=axes,
    )
    return onnx.load(path)


def write_voice(folder: Path) -> Path:
    """Write the voice, whose prefill and decode keep their weights in one file."""
    torch.manual_seed(0)
    folder.mkdir()
    model, decoder = LanguageModel(), Decoder()
    names = [f"{kind}_{layer}" for layer in range(LAYERS) for kind in ("key", "value")]
    present, past = [f"present_{name}" for name in names], [f"past_{name}" for name in names]
    cache = torch.zeros(1, HEADS, 3, WIDTH // HEADS)
    grows = {name: {2: "P"} for name in past} | {name: {2: "N"} for name in present}
    ids = torch.ones(1, 5, dtype=torch.int64)
    axes = {"ids": {1: "L"}, "logits": {1: "L"}, **grows}
    axes = {name: axis for name, axis in axes.items() if name not in past}
    prefill = export(model, {"ids": ids}, ["logits", *present], axes, folder / "prefill.onnx")
    step = {"token": ids[:, :1], "position": ids[0, :1], **dict.fromkeys(past, cache)}
    decode = export(model, step, ["logits", *present], grows, folder / "decode.onnx")
    shared = SharedWeights(folder / "shared.data")
    shared.write(prefill, folder / "prefill.onnx")
    shared.write(decode, folder / "decode.onnx")
    axes = {"codes": {1: "T"}, "audio": {2: "S"}}
    export(decoder, {"codes": ids}, ["audio"], axes, folder / "decoder.onnx")
    (folder / "contract.toml").write_text(CONTRACT, encoding="utf-8")
    return folder / "prefill.onnx"


LATENTS = """
version = 1
name = "tiny-latents"
sample_rate = 16000
language = "en-us"
loop = "speech"
output = "audio"
[tokens]
source = "characters"
vocabulary = { 1 = " abcdefghijklmnopqrstuvwxyz.,'" }
[until.speech]
output = "stop"
above = 0.5
after = 2
longest = 50
latent = "new"
[input.ids]
role = "tokens"
[input.voice]
role = "recording"
rate = 8000
[input.latent]
role = "constant"
value = 0
shape = [1, 8]
next = "new"
[input.noise]
role = "noise"
shape = [1, 8]
[input.count]
role = "state"
output = "counted"
"""


class LatentStep(nn.Module):
    """A step of a voice that writes latents, and their sound."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(VOCABULARY, 8), nn.Linear(16, 8)
        self.sound = nn.Linear(8, HOP)

    def forward(
        self, ids: Tensor, voice: Tensor, latent: Tensor, noise: Tensor, count: Tensor
    ) -> tuple[Tensor, ...]:
        """Return audio, the log-odds of the end, the next latent, and the number of steps."""
        read = torch.cat([self.embedding(ids).mean(1) + voice.abs().mean(), latent], 1)
        hidden = torch.tanh(self.hidden(read))
        new = hidden + 0.3 * noise
        stop = count - 0.5 * ids.shape[1] + hidden[:, 0]
        return torch.tanh(self.sound(new)), stop, new, count + 1


def write_latent_voice(folder: Path) -> Path:
    """Write a voice of one graph, which runs in a loop."""
    torch.manual_seed(0)
    folder.mkdir()
    ids, latent = torch.ones(1, 5, dtype=torch.int64), torch.zeros(1, 8)
    inputs = {"ids": ids, "voice": torch.ones(1, 9), "latent": latent, "noise": latent}
    inputs["count"] = torch.zeros(1)
    outputs = ["audio", "stop", "new", "counted"]
    axes = {"ids": {1: "L"}, "voice": {1: "T"}}
    export(LatentStep(), inputs, outputs, axes, folder / "step.onnx")
    (folder / "contract.toml").write_text(LATENTS, encoding="utf-8")
    return folder / "step.onnx"
