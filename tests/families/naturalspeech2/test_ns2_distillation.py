"""The estimator's training targets are recorded from the original's own trajectories."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from tts_compress.compression import compress
from tts_compress.models.naturalspeech2.model import NaturalSpeech2Model
from tts_compress.qat.task import compared_outputs, repeatable
from tts_compress.qat.training import CallRecorder

if TYPE_CHECKING:
    from tts_compress.models.base import Call, Objective
    from tts_compress.models.naturalspeech2.model import NaturalSpeech2Model


def _objective(model: NaturalSpeech2Model, module: str) -> Objective:
    (found,) = [x for x in model.objectives() if x.module == module]
    return found


def _record(model: NaturalSpeech2Model, objective: Objective) -> list[Call]:
    recorder, root = CallRecorder(objective, most=8), model.root()
    with recorder.recording(root):
        model.with_root(root, None).synthesize("good day", seed=0)
    return recorder.calls


def _repeat(root: Any, objective: Objective, call: Call) -> Any:
    """Return a module's output for copies of recorded inputs."""
    method = repeatable(root.get_submodule(objective.module), objective)
    return method(*copy.deepcopy(call.arguments), **copy.deepcopy(call.keywords))


def _loss(model: NaturalSpeech2Model, objective: Objective, call: Call) -> float:
    import torch

    with torch.no_grad():
        (answer,) = compared_outputs(objective, _repeat(model.root(), objective, call))
    (expected,) = compared_outputs(objective, call.output)
    return float((answer - expected).square().mean())


def test_every_part_that_computes_in_fewer_bits_has_an_objective(
    tiny_ns2: NaturalSpeech2Model,
) -> None:
    root = tiny_ns2.root()
    for objective in tiny_ns2.objectives():
        assert root.get_submodule(objective.module)
        assert _record(tiny_ns2, objective), objective.module


def test_each_step_of_a_trajectory_is_a_call(tiny_ns2: NaturalSpeech2Model) -> None:
    objective = _objective(tiny_ns2, "diffusion.diff_estimator")
    calls = _record(tiny_ns2, objective)
    assert [round(float(call.arguments[3]), 3) for call in calls] == [0.875, 0.625, 0.375, 0.125]
    assert all(call.output.shape[1] == 128 for call in calls)


def test_the_original_imitates_itself_and_a_rounded_one_nearly(
    tiny_ns2: NaturalSpeech2Model,
) -> None:
    small = compress(tiny_ns2, "int8")
    assert isinstance(small, type(tiny_ns2))
    for objective in tiny_ns2.objectives():
        if objective.loss != "mse":
            continue
        call = _record(tiny_ns2, objective)[0]
        (output,) = compared_outputs(objective, call.output)
        power = float(output.square().mean())
        # torch's own attention adds up in another order while noise is chosen.
        assert _loss(tiny_ns2, objective, call) < 1e-10 * power
        assert 1e-6 * power < _loss(small, objective, call) < 0.05 * power


def test_gradients_reach_the_weights(tiny_ns2: NaturalSpeech2Model) -> None:
    from tts_compress.torch.layers.module_surgery import copy_sharing_tensors, normalize

    objective = _objective(tiny_ns2, "diffusion.diff_estimator")
    call = _record(tiny_ns2, objective)[0]
    student = copy.deepcopy(normalize(copy_sharing_tensors(tiny_ns2.root())))
    for parameter in student.parameters():
        parameter.requires_grad_()
    (answer,) = compared_outputs(objective, _repeat(student, objective, call))
    (answer - 2 * call.output).square().mean().backward()
    estimator = student.get_submodule(objective.module)
    missing = [
        name for name, p in estimator.named_parameters() if p.grad is None or not p.grad.any()
    ]
    # Keys' biases move all scores alike.
    assert [name for name in missing if not name.endswith("k_proj.bias")] == []
