"""Attention whose projections are layers of their own.

`nn.MultiheadAttention` keeps its input projections in one bare parameter and hands it to a
function, so replacing linear layers passes it over; and `nn.TransformerEncoderLayer` has a fast
path that reads weights behind its modules' backs.
"""

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn


class OpenAttention(nn.Module):
    """Multi-head attention equal to a `torch.nn.MultiheadAttention`, in evaluation.

    Args:
        closed: The module whose weights it shares.
    """

    def __init__(self, closed: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = closed.embed_dim, closed.num_heads
        self.head_dim, self.batch_first = closed.head_dim, closed.batch_first
        self._qkv_same_embed_dim = False  # makes nn.TransformerEncoderLayer call this module
        self.in_proj_weight, self.in_proj_bias = None, None  # it asks for them first
        if closed.in_proj_weight is not None:
            weights = closed.in_proj_weight.chunk(3)
        else:
            weights = (closed.q_proj_weight, closed.k_proj_weight, closed.v_proj_weight)
        biases = (None,) * 3 if closed.in_proj_bias is None else closed.in_proj_bias.chunk(3)
        self.q_proj, self.k_proj, self.v_proj = map(_linear, weights, biases)
        self.out_proj = _linear(closed.out_proj.weight, closed.out_proj.bias)

    def forward(  # noqa: PLR0913, PLR0917  the signature of what it replaces
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor | None]:
        """Return output and attention weights, as `torch.nn.MultiheadAttention` does.

        The mask decides; `is_causal` is a hint that one is causal, and needs it to be given.
        """
        if is_single := query.dim() == 2:
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        mask = _join(key_padding_mask, attn_mask, query, self.num_heads)
        output, weights = self._attend((query, key, value), mask, need_weights)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if is_single:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _attend(
        self, inputs: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return output `[batch, time, dim]` and weights `[batch, heads, queries, keys]`."""
        layers = (self.q_proj, self.k_proj, self.v_proj)
        rows = (layer(x) for layer, x in zip(layers, inputs, strict=True))
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in rows)
        weights = None
        if need_weights:
            scores = q @ k.transpose(-1, -2) * self.head_dim**-0.5
            weights = torch.softmax(scores if mask is None else scores + mask, -1)
            heads = weights @ v
        else:
            heads = F.scaled_dot_product_attention(q, k, v, mask)
        return self.out_proj(heads.transpose(1, 2).flatten(2)), weights


def open_attention(module: nn.Module) -> OpenAttention | None:
    """Return the equal of an `nn.MultiheadAttention`; None for any other module.

    Also for one that appends learned keys or zeros (`add_bias_kv`, `add_zero_attn`).
    """
    # A subclass with a forward of its own may do anything.
    if type(module).forward is not nn.MultiheadAttention.forward:
        return None
    assert isinstance(module, nn.MultiheadAttention)
    appends = module.bias_k is not None or module.add_zero_attn
    return None if appends else OpenAttention(module)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def _join(padding: Tensor | None, mask: Tensor | None, query: Tensor, heads: int) -> Tensor | None:
    """Return one mask that is added to scores `[batch, heads, queries, keys]`."""
    given = [] if padding is None else [padding[:, None, None, :]]
    if mask is not None:
        given.append(mask if mask.dim() == 2 else mask.view(-1, heads, *mask.shape[1:]))
    joined: Tensor | None = None
    for part in given:
        added = part.to(query.dtype)
        if part.dtype == torch.bool:
            added = torch.zeros_like(added).masked_fill(part, float("-inf"))
        joined = added if joined is None else joined + added
    return joined
