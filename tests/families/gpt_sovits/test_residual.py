"""Residual blocks without copies compute what upstream's compute."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from tts_compress.models.gpt_sovits.modules import ResidualBlock, open_residuals  # noqa: E402
from tts_compress.torch.layers.module_surgery import fold_weight_norm  # noqa: E402

if TYPE_CHECKING:
    from tts_compress.models.gpt_sovits.loading import Official
    from tts_compress.models.gpt_sovits.model import GptSovitsModel


def _holder(official: Official) -> Any:
    torch.manual_seed(0)
    block = official.checkout.load("module.modules").ResBlock1(8, 3, (1, 3, 5))
    holder = torch.nn.ModuleDict({"block": block}).eval()
    fold_weight_norm(holder)
    return holder


def test_a_block_is_upstreams_bit_by_bit(official: Official) -> None:
    plain = _holder(official)
    opened = copy.deepcopy(plain)
    open_residuals(official.checkout, opened)
    assert isinstance(opened["block"], ResidualBlock)
    assert opened.state_dict().keys() == plain.state_dict().keys()
    x = torch.randn(2, 8, 40)
    before = x.clone()
    with torch.inference_mode():
        assert torch.equal(opened["block"](x), plain["block"](x))
    assert torch.equal(x, before)


def test_gradients_are_upstreams(official: Official) -> None:
    """Some steps write over what they read; none of it is what gradients are computed from."""
    plain = _holder(official)
    opened = copy.deepcopy(plain)
    open_residuals(official.checkout, opened)
    found = []
    for holder in (plain, opened):
        x = torch.randn(1, 8, 20, generator=torch.Generator().manual_seed(1), requires_grad=True)
        holder["block"](x).square().mean().backward()
        found.append([x.grad, *(parameter.grad for parameter in holder.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_models_decoder_has_such_blocks(tiny: GptSovitsModel) -> None:
    blocks: Any = tiny.root().get_submodule("vits.dec.resblocks")
    assert {type(block) for block in blocks} == {ResidualBlock}
