"""Distillation of the original GPT-SoVITS into a compressed one, component by component."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.compression import compress
from tts_compress.qat.task import compared_outputs, objective_terms, repeatable
from tts_compress.qat.training import CallRecorder

if TYPE_CHECKING:
    from tts_compress.models.base import Call, Objective
    from tts_compress.models.gpt_sovits.model import GptSovitsModel

TEXT = "one two three"


def _run(model: GptSovitsModel, root: Any) -> None:
    """Call all components: encode the recording, read Chinese, score tokens, speak."""
    own = model.with_root(root, None)
    own = own.with_options(own.options.changed({"text_lang": "all_zh"}, "the test"))
    text = "一丁七万丈三"
    tokens = own.generate_tokens(text, seed=0)
    own.logits(text, tokens)


def _repeat(root: Any, objective: Objective, call: Call) -> Any:
    """Return a module's output for copies of recorded inputs."""
    method = repeatable(root.get_submodule(objective.module), objective)
    return method(*copy.deepcopy(call.arguments), **copy.deepcopy(call.keywords))


def _loss(root: Any, objective: Objective, call: Call) -> Any:
    """Return the loss of a root's component on a recorded call."""
    outputs = compared_outputs(objective, _repeat(root, objective, call))
    targets = compared_outputs(objective, call.output)
    return sum(objective_terms(objective, outputs, targets, [1.0] * len(targets)).values())


@pytest.mark.parametrize("index", range(6))
def test_a_component_learns_from_the_original(tiny: GptSovitsModel, index: int) -> None:
    import torch

    from tts_compress.qat.prepare import own_tensors
    from tts_compress.torch.layers.module_surgery import copy_sharing_tensors

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
    objective = objectives[index + (index > 1)]  # the style encoder's output has no noise to find
    root = copy_sharing_tensors(tiny.root())
    recorder = CallRecorder(objective, most=2)
    with recorder.recording(root):
        _run(tiny, root)
    assert 1 <= len(recorder.calls) <= 2
    call = recorder.calls[0]
    assert float(_loss(root, objective, call).detach()) == pytest.approx(0, abs=1e-6)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small: Any = compress(tiny, "int8-weight-only")
    student: Any = own_tensors(tiny.root(), trainable=True)
    assert float(_loss(small.root(), objective, call).detach()) > 1e-9
    module = student.get_submodule(objective.module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    outputs = compared_outputs(objective, _repeat(student, objective, call))
    assert all(torch.isfinite(output).all() for output in outputs)
    _loss(student, objective, call).backward()
    reached = [p for p in module.parameters() if p.grad is not None and p.grad.abs().max() > 0]
    assert len(reached) > 0.6 * len(list(module.parameters()))
