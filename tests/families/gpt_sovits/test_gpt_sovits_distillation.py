"""What a compressed GPT-SoVITS can learn from the original, component by component."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.compression import compress
from tts_compress.models.distillation import Distillable
from tts_compress.models.distillation_losses import distance
from tts_compress.models.recorded_calls import call_module, compared_outputs, record_calls

if TYPE_CHECKING:
    from tts_compress.models.gpt_sovits import GptSovitsModel

TEXT = "one two three"


def _run(model: GptSovitsModel, root: Any) -> None:
    """Have all components called: hear the recording, read Chinese, score tokens, speak."""
    own = model.with_root(root, None)
    own = own.with_options(own.options.changed({"text_lang": "all_zh"}, "the test"))
    text = "一丁七万丈三"
    tokens = own.generate_tokens(text, seed=0)
    own.logits(text, tokens)


@pytest.mark.parametrize("index", range(6))
def test_a_component_learns_from_the_original(tiny: GptSovitsModel, index: int) -> None:
    import torch

    from tts_compress.qat.prepare import own_tensors
    from tts_compress.torch.layers.structure import share

    assert isinstance(tiny, Distillable)
    objectives = tiny.objectives()
    assert [o.module for o in objectives] == [
        "bert",
        "hubert",
        "vits.ref_enc",
        "t2s",
        "vits.enc_p",
        "vits.flow",
        "vits.dec",
    ]
    objective = objectives[index + (index > 1)]  # the style encoder's answer has no noise to find
    root = share(tiny.root())
    calls = record_calls(root, objective, lambda r: _run(tiny, r), most=2)
    assert 1 <= len(calls) <= 2
    same = distance(objective, call_module(root, objective, calls[0]), calls[0].output)
    assert float(same) == pytest.approx(0, abs=1e-6)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = compress(tiny, "int8-weight-only")
    assert isinstance(small, Distillable)
    rounded = small.root()
    student: Any = own_tensors(share(tiny.root()), trainable=True)
    lost = distance(objective, call_module(rounded, objective, calls[0]), calls[0].output)
    assert float(lost) > 1e-9
    module = student.get_submodule(objective.module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    outputs = compared_outputs(objective, call_module(student, objective, calls[0]))
    assert all(torch.isfinite(output).all() for output in outputs)
    loss: Any = distance(objective, call_module(student, objective, calls[0]), calls[0].output)
    loss.backward()
    reached = [p for p in module.parameters() if p.grad is not None and p.grad.abs().max() > 0]
    assert len(reached) > 0.6 * len(list(module.parameters()))
