"""From a module that was trained as if compressed to a compressed one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tts_compress.errors import QuantizationError
from tts_compress.qat.fake_quantize import disable_observer
from tts_compress.qat.layer import FakeQuantizedLayer
from tts_compress.qat.prepare import PreparedModule, own_tensors
from tts_compress.qat.stubs import Bordered
from tts_compress.torch.convert import finish, round_stored
from tts_compress.torch.layers.structure import replace_module, share

if TYPE_CHECKING:
    from torch import nn

    from tts_compress.torch.convert import Converted

__all__ = ["convert_qat"]


@torch.no_grad()
def convert_qat(prepared: PreparedModule) -> Converted:
    """Return a compressed copy with the weights and ranges that were learnt.

    Its layers are those that `compress` makes, and it shares no tensor with what was trained.

    Args:
        prepared: As `prepare_qat` made it and training left it; not modified.

    Raises:
        QuantizationError: A range was never observed, a weight is not finite, or the finished
            module does not hold what the recipe promised.
    """
    copy = own_tensors(share(prepared), trainable=False)
    assert isinstance(copy, PreparedModule)
    disable_observer(copy)
    root = _without_borders(copy.module)
    _refuse_infinite(root)
    rounded: dict[int, nn.Parameter] = {}
    for decision in prepared.decisions:
        layer = root.get_submodule(decision.module)
        if isinstance(layer, FakeQuantizedLayer):
            root = replace_module(root, decision.module, layer.build())
        elif decision.weights != "float32":
            round_stored(layer, decision.weights, rounded)
    return finish(root.eval(), prepared.decisions)


def _without_borders(root: nn.Module) -> nn.Module:
    """Return a module without the stubs around its parts, the outermost first."""
    while borders := [(n, m) for n, m in root.named_modules() if isinstance(m, Bordered)]:
        name, bordered = borders[0]
        root = replace_module(root, name, bordered.module)
    return root


def _refuse_infinite(root: nn.Module) -> None:
    for name, parameter in root.named_parameters():
        if not torch.isfinite(parameter).all():
            raise QuantizationError(
                f"'{name}' is not finite: training went wrong; go back to an earlier checkpoint"
            )
