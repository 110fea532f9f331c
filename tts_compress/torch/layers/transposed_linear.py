"""Linear layers of GPT-2 and its like, which keep their weight transposed."""

from typing import ClassVar

from torch import nn

_UPSTREAM = ("transformers.pytorch_utils", "Conv1D")
"""The module that multiplies `[..., inputs]` by a weight `[inputs, outputs]`."""


class TransposedLinear(nn.Linear):
    """A linear layer equal to a `Conv1D` of transformers, with that module's attributes.

    Args:
        upstream: The module whose weights it shares.
    """

    upstream_names: ClassVar[list[str]] = ["nf", "nx"]

    def __init__(self, upstream: nn.Module) -> None:
        weight, bias = upstream.get_parameter("weight"), upstream.get_parameter("bias")
        super().__init__(weight.shape[0], weight.shape[1], device="meta")
        self.nx, self.nf = weight.shape
        self.weight = nn.Parameter(weight.detach().t(), requires_grad=False)
        self.bias = nn.Parameter(bias.detach(), requires_grad=False)


def replace_transposed(module: nn.Module) -> TransposedLinear | None:
    """Return the equal of a `Conv1D` of transformers; None for any other module."""
    kind = type(module)
    return TransposedLinear(module) if (kind.__module__, kind.__name__) == _UPSTREAM else None
