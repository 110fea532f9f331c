"""F5-TTS' transformer: one step of Euler's method with guidance, and the constants of its graph."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tts_compress.errors import ModelError
from tts_compress.export.fourier import FrameSettings
from tts_compress.export.graphs import copy_shell

# Upstream's times in units of 1/32 for few evaluations: fine steps first.
_FEW = {
    5: (0, 2, 4, 8, 16, 32),
    6: (0, 2, 4, 6, 8, 16, 32),
    7: (0, 2, 4, 6, 8, 16, 24, 32),
    10: (0, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32),
    12: (0, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32),
    16: (*range(9), 10, 12, 14, 16, 20, 24, 28, 32),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class F5GraphOptions:
    """Constants of the graphs; the defaults are those of the official inference."""

    nfe_step: int = 32
    """Number of calls of the transformer's graph."""

    cfg_strength: float = 2.0
    """Strength of classifier-free guidance; 0 halves the work."""

    sway_sampling_coef: float | None = -1.0
    """Shifts time steps to the beginning; None leaves them evenly spaced."""

    tabulate_time: bool = True
    """Store each layer's modulation at each time step as a table instead of its weights.

    The results are the same; 139 of the 337 million weights of `F5TTS_v1_Base` become 4.
    """

    frames: FrameSettings = field(default_factory=FrameSettings)

    def __post_init__(self) -> None:
        if self.nfe_step < 1:
            raise ModelError(f"nfe_step is {self.nfe_step}; give 1 or more")
        if not (math.isfinite(self.cfg_strength) and self.cfg_strength >= 0):
            raise ModelError(f"cfg_strength is {self.cfg_strength}; give 0 or more")

    @property
    def guided(self) -> bool:
        """True where the transformer is guided, by upstream's own limit."""
        return self.cfg_strength >= 1e-5


def schedule(options: F5GraphOptions) -> torch.Tensor:
    """Return the times (nfe_step + 1,) from 0 to 1 that Euler's method goes through."""
    if options.nfe_step in _FEW:
        times = torch.tensor(_FEW[options.nfe_step], dtype=torch.float32) / 32
    else:
        times = torch.linspace(0, 1, options.nfe_step + 1)
    if options.sway_sampling_coef is None:
        return times
    sway = torch.cos(torch.pi / 2 * times) - 1 + times
    return times + options.sway_sampling_coef * sway


class Step(nn.Module):
    """The second graph: the official layers, with positions and conditions as inputs."""

    def __init__(self, transformer: nn.Module, options: F5GraphOptions) -> None:
        super().__init__()
        shell: Any = copy_shell(transformer)
        times = schedule(options)
        self.options = options
        self.times = nn.Buffer(times[:-1], persistent=False)
        self.widths = nn.Buffer(times.diff(), persistent=False)
        self.input_embed = _Input(shell.input_embed)
        self.transformer_blocks = shell.transformer_blocks
        self.long_skip_connection = shell.long_skip_connection
        self.norm_out = shell.norm_out
        self.proj_out = shell.proj_out
        self.time_embed = shell.time_embed
        for block in self.transformer_blocks:
            block.attn.processor = _Attention(block.attn.processor.pe_attn_head)
        if options.tabulate_time:
            self._tabulate()

    def forward(
        self,
        noise: torch.Tensor,
        rope_cos: torch.Tensor,
        rope_sin: torch.Tensor,
        *conditions_and_step: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mel (1, n, bands) after a step, and the number of the next one.

        Args:
            noise: Noise (1, n, bands) at step 0, later the output of the step before.
            rope_cos: Cosines of the positions (1, n, head).
            rope_sin: Their sines.
            conditions_and_step: The condition with recording and text (1, n, bands + D), with
                guidance the one without, and the step's number (1,), int32, from 0.
        """
        *conditions, time_step = conditions_and_step
        index = time_step.long()
        if self.options.tabulate_time:  # chooses a row of each table
            embedding = (torch.arange(self.options.nfe_step) == index)[None].float()
        else:
            embedding = self.time_embed(self.times[index])
        flow = self._flow(noise, (rope_cos, rope_sin), conditions, embedding)
        moved = noise + flow * self.widths[index]
        # The recording is kept as it is; no frame of sound is 0 in every band.
        recorded = conditions[0][:, :, : noise.shape[2]]
        kept = (recorded.abs().amax(dim=2, keepdim=True) > 0) & (index == self.options.nfe_step - 1)
        return torch.where(kept, recorded, moved), time_step + 1

    def _flow(
        self,
        noise: torch.Tensor,
        positions: tuple[torch.Tensor, torch.Tensor],
        conditions: list[torch.Tensor],
        embedding: torch.Tensor,
    ) -> torch.Tensor:
        """Return the velocity (1, n, bands), guided away from the one without conditions."""
        inputs = [torch.cat([noise, condition], dim=2) for condition in conditions]
        x = self.input_embed(torch.cat(inputs, dim=0))
        first = x
        for block in self.transformer_blocks:
            x = block(x, embedding, rope=positions)
        if self.long_skip_connection is not None:
            x = self.long_skip_connection(torch.cat([x, first], dim=2))
        flow: torch.Tensor = self.proj_out(self.norm_out(x, embedding))
        if not self.options.guided:
            return flow
        with_text, without = flow.chunk(2, dim=0)
        return with_text + (with_text - without) * self.options.cfg_strength

    @torch.no_grad()
    def _tabulate(self) -> None:
        embedding = self.time_embed(self.times)
        norms = [block.attn_norm for block in self.transformer_blocks]
        for norm in [*norms, self.norm_out]:
            norm.linear = _Row(norm.linear(norm.silu(embedding)))
            norm.silu = nn.Identity()
        self.time_embed = nn.Identity()


class _Input(nn.Module):
    """The official layers that mix noise and conditions, called with both in one tensor."""

    def __init__(self, official: Any) -> None:
        super().__init__()
        self.proj = official.proj
        self.conv_pos_embed = official.conv_pos_embed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input (B, n, C) of the first block for x (B, n, 2 · bands + D)."""
        mixed: torch.Tensor = self.proj(x)
        positions: torch.Tensor = self.conv_pos_embed(mixed)
        return mixed + positions


class _Row(nn.Module):
    """Rows of a table, chosen by a product: quantizers would take a lookup for an embedding."""

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__()
        self.rows = nn.Buffer(rows[None], persistent=False)

    def forward(self, chosen: torch.Tensor) -> torch.Tensor:
        """Return the row (1, C) for which `chosen` (1, rows) is 1."""
        return torch.matmul(chosen[None], self.rows)[0]


class _Attention:
    """The official attention with the positions' cosines and sines given."""

    def __init__(self, heads: int | None) -> None:
        self.heads = heads

    def __call__(
        self,
        attn: Any,
        x: torch.Tensor,
        mask: None = None,
        rope: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Return attention's output (B, n, D) for x (B, n, D)."""
        assert mask is None
        assert rope is not None
        query, key, value = (
            y.reshape(y.shape[0], -1, attn.heads, y.shape[2] // attn.heads).transpose(1, 2)
            for y in (part(x) for part in (attn.to_q, attn.to_k, attn.to_v))
        )
        if attn.q_norm is not None:
            query, key = _scaled(query, attn.q_norm), _scaled(key, attn.k_norm)
        query, key = (_rotate(part, rope, self.heads) for part in (query, key))
        heads = functional.scaled_dot_product_attention(query, key, value)
        output: torch.Tensor = attn.to_out[0](heads.transpose(1, 2).flatten(2))
        return output


def _rotate(
    x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], heads: int | None = None
) -> torch.Tensor:
    """Return x (B, heads, n, d) with neighbouring values of the first heads rotated."""
    if heads is not None:
        return torch.cat([_rotate(x[:, :heads], rope), x[:, heads:]], dim=1)
    cosines, sines = (part[:, None] for part in rope)
    width = cosines.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    pairs = turned.reshape(*turned.shape[:-1], -1, 2)
    crossed = torch.stack([-pairs[..., 1], pairs[..., 0]], dim=-1).flatten(-2)
    turned = turned * cosines + crossed * sines
    return torch.cat([turned, rest], dim=-1) if x.shape[-1] > width else turned


def _scaled(x: torch.Tensor, norm: Any) -> torch.Tensor:
    """Return x divided by the root of its mean square, as the official layer does."""
    weight: torch.Tensor = norm.weight
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + norm.eps) * weight
