"""Step 4, ``language``: train the language model of latents.

The head that makes a latent of noise in one step learns by the energy score: the distance from what
it makes to the truth, less half the distance between two of its answers (Gneiting and Raftery,
2007, section 4.3). The demo voice tells when it speaks which phoneme, so one head of one layer
is told to look at the phoneme that was just heard, and one of the next at the one that comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .batches import Batch, draw_batch, load_sentences
from .codec import load_codec
from .speech import FRAME
from .texts import HELD_OUT
from .training import Run
from .voice import build, write

if TYPE_CHECKING:
    import random
    from pathlib import Path

_DRAWS = 4
"""Latents that are made for each place, for the score."""
_NOISE = 0.5
"""Most noise on the latents that are read: speech then goes on from its own imperfect ones."""
_GUIDED = (1, 2)
"""Layers whose first head is told where to look."""
_RECORDING = 11
"""Frames of the recording that the voice is stored with."""


class Guide:
    """Looks into the attention of some layers while they compute."""

    def __init__(self, lm: Any) -> None:
        self.seen: dict[int, Tensor] = {}
        self._attention = {n: lm.transformer.layers[n].self_attn for n in _GUIDED}
        for n, attention in self._attention.items():
            attention.register_forward_pre_hook(
                lambda _, inputs, n=n: self.seen.update({n: inputs[0]})
            )

    def loss(self, layer: int, rows: Tensor, positions: Tensor, looks: Tensor) -> Tensor:
        """Return how unlikely the first head looks where it should, in nats. ``[n] x 3 -> []``."""
        attention, x = self._attention[layer], self.seen[layer]
        d, inner = attention.dim_per_head, attention.attn_dim
        weight = attention.in_proj.weight
        query = functional.linear(x, weight[:d])[:, :, None]
        key = functional.linear(x, weight[inner : inner + d])[:, :, None]
        query, key = attention.rope(query, key, offset=0)
        scores = query[:, :, 0] @ key[:, :, 0].transpose(1, 2) / d**0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        chances = scores.masked_fill(later, float("-inf"))[rows, positions]
        return functional.cross_entropy(chances, looks)


def losses(lm: Any, guide: Guide, batch: Batch, scale: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the energy score, the end's log loss and the guide's."""
    size = len(batch.prompt)
    noise = torch.rand(size, 1, device=batch.latents.device)[batch.rows] * _NOISE
    heard = batch.before + noise * torch.randn_like(batch.before)
    heard = torch.where(heard.isnan(), lm.bos_emb, heard)
    raw = batch.prompt * scale["std"] + scale["mean"]
    prompt = functional.linear(raw, lm.speaker_proj_weight)
    prompt = torch.cat([lm.bos_before_voice.expand(size, -1, -1), prompt], 1)
    whole = torch.zeros(size, int(batch.positions.max()) + 1, lm.dim, device=prompt.device)
    whole[:, : prompt.shape[1]] = prompt
    row, position, token = batch.words
    whole[row, position] = lm.conditioner(token)
    whole[batch.rows, batch.positions] = lm.input_linear(heard)
    answer = lm.out_norm(lm.transformer(whole, None))[batch.rows, batch.positions]
    last = torch.where(batch.before[:, 0].isnan(), batch.looks, batch.looks.roll(1))
    guided = [
        guide.loss(_GUIDED[0], batch.rows, batch.positions, last),
        guide.loss(_GUIDED[1], batch.rows, batch.positions, batch.looks),
    ]
    drawn = torch.randn(_DRAWS, *batch.latents.shape, device=answer.device)
    made = drawn + lm.flow_net(answer.expand(_DRAWS, -1, -1), drawn)
    far = (made - batch.latents).norm(dim=-1).mean()
    apart = (made - made.roll(1, 0)).norm(dim=-1).mean()
    score = lm.out_eos(answer)[:, 0]
    end = functional.binary_cross_entropy_with_logits(score, batch.ends)
    return {"energy": far - apart / 2, "end": end, "guide": 0.1 * torch.stack(guided).sum()}


def train_language(work: Path, steps: int, device: str, batch: int, rate: float) -> None:
    """Train the language model, and write `WORK/voice`."""
    sentences, kept, about = load_sentences(work)
    torch.manual_seed(0)
    root = build(work / "voice", about["said"])
    lm = root.flow_lm
    nn.init.normal_(lm.speaker_proj_weight, 0, 0.02)
    nn.init.normal_(lm.conditioner.embed.weight, 0, 0.5)
    lm.to(device).train()
    guide = Guide(lm)
    scale = {name: kept[name].to(device) for name in ("mean", "std")}
    usable = sentences[:-HELD_OUT]

    def loss(rng: random.Random) -> dict[str, Tensor]:
        return losses(lm, guide, draw_batch(usable, batch, rng).to(device), scale)

    run = Run(work / "language.safetensors", lm, steps, rate)
    run.train(loss)
    run.averaged()
    root.cpu()
    load_codec(work, root)
    lm.emb_mean.copy_(kept["mean"])
    lm.emb_std.copy_(kept["std"])
    write(work / "voice", root.eval(), kept["prompt"][: _RECORDING * FRAME])
