"""A component's training targets: calls as they were, and losses as other code computes them."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.errors import ModelError
from tts_compress.models.base import Objective

torch = pytest.importorskip("torch")
recorded_calls = pytest.importorskip("tts_compress.qat.training")

if TYPE_CHECKING:
    from torch import nn


class _Decoder(torch.nn.Module):  # type: ignore[name-defined, misc]
    """A layer that changes its input in place, returns several things, and has a second method."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x: Any, *, scale: float = 1.0) -> Any:
        x += 1
        hidden = self.layer(x) * scale
        return hidden, {"lengths": torch.tensor([x.shape[0]]), "loud": hidden.exp()}

    def decode(self, parts: list[Any]) -> Any:
        return self.layer(torch.cat(parts))


def _root() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(OrderedDict(encoder=torch.nn.Linear(3, 3), decoder=_Decoder()))


_FORWARD = Objective(module="decoder", loss="mse")
_DECODE = Objective(module="decoder", loss="kl", method="decode")


def call_module(root: Any, objective: Objective, call: Any) -> Any:
    """Return a module's output for copies of recorded inputs."""
    method = recorded_calls.repeatable(root.get_submodule(objective.module), objective)
    return method(*copy.deepcopy(call.arguments), **call.keywords)


def _record(root: Any, objective: Objective, run: Any, *, most: int, seed: int = 0) -> list[Any]:
    """Return calls of a module while `run` runs the model."""
    recorder = recorded_calls.CallRecorder(objective, most=most, seed=seed)
    with recorder.recording(root):
        run(root)
    found: list[Any] = recorder.calls
    return found


def _speak(root: nn.Module, times: int) -> None:
    with torch.inference_mode():
        for step in range(times):
            root.get_submodule("decoder")(torch.full((1, 3), float(step)), scale=2.0)


def test_calls_are_kept_as_they_were_given_and_answered() -> None:
    root = _root()
    calls = _record(root, _FORWARD, lambda module: _speak(module, 3), most=5)
    assert [float(call.arguments[0][0, 0]) for call in calls] == [0.0, 1.0, 2.0]
    for call in calls:
        assert call.keywords == {"scale": 2.0}
        wanted = (call.arguments[0] + 1) @ root.decoder.layer.weight.T + root.decoder.layer.bias
        torch.testing.assert_close(call.output[0], wanted.detach() * 2)
        assert not call.output[0].requires_grad
        assert not call.arguments[0].is_inference()
        assert not call.output[0].is_inference()


def test_what_was_recorded_in_inference_mode_can_be_learnt_from() -> None:
    root = _root()
    call, *_ = _record(root, _FORWARD, lambda module: _speak(module, 1), most=1)
    hidden, _ = call_module(root, _FORWARD, call)
    torch.testing.assert_close(hidden, call.output[0])
    hidden.sum().backward()
    assert root.decoder.layer.weight.grad is not None
    again, _ = call_module(root, _FORWARD, call)  # the module changes its input, not the record
    torch.testing.assert_close(again, call.output[0])


def test_a_method_that_is_not_forward_is_recorded_under_its_name() -> None:
    def run(root: Any) -> None:
        parts = [torch.zeros(1, 3)]
        root.decoder.decode(parts)
        parts.append(torch.ones(1, 3))  # a list that grows afterwards, like a cache
        root.decoder.decode(parts)
        root.decoder(torch.zeros(1, 3))

    root = _root()
    calls = _record(root, _DECODE, run, most=9)
    assert [len(call.arguments[0]) for call in calls] == [1, 2]
    torch.testing.assert_close(call_module(root, _DECODE, calls[1]), calls[1].output)


@pytest.mark.parametrize("objective", [_FORWARD, _DECODE], ids=lambda o: o.method)
def test_the_module_is_left_as_it_was_whatever_happens(objective: Objective) -> None:
    def fail(_: nn.Module) -> None:
        raise RuntimeError("the model broke")

    root: Any = _root()
    before = dict(vars(root.decoder))
    with pytest.raises(RuntimeError, match="broke"):
        _record(root, objective, fail, most=1)
    assert vars(root.decoder) == before

    own = len  # a method that upstream put on this one object
    root.decoder.decode = own
    _record(root, _DECODE, lambda module: module.decoder.decode([1, 2]), most=1)
    assert root.decoder.decode is own


def test_of_many_calls_a_sample_from_all_of_them_is_kept() -> None:
    root = _root()

    def steps(seed: int) -> list[int]:
        run = lambda module: _speak(module, 200)  # noqa: E731
        calls = _record(root, _FORWARD, run, most=20, seed=seed)
        return [int(call.arguments[0][0, 0]) for call in calls]

    samples = [steps(seed) for seed in range(12)]
    assert samples[0] == steps(0)
    assert samples[0] != samples[1]
    for sample in samples:
        assert len(set(sample)) == 20
        assert sample == sorted(sample)
    # 240 of 2400: each half holds half of them, within four standard deviations (7.8).
    assert abs(sum(step < 100 for sample in samples for step in sample) - 120) < 32


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"module": "vocoder"}, "no module 'vocoder'"),
        ({"method": "sing"}, "a _Decoder without a method 'sing'"),
    ],
    ids=["module", "method"],
)
def test_what_cannot_be_recorded_is_said(changes: dict[str, Any], says: str) -> None:
    objective = Objective(**({"module": "decoder", "loss": "mse"} | changes))
    with pytest.raises(ModelError, match=says):
        _record(_root(), objective, lambda module: _speak(module, 1), most=1)


def test_an_objective_chooses_among_floating_point_outputs() -> None:
    hidden, loud = torch.zeros(2), torch.ones(3)
    output = (hidden, {"lengths": torch.tensor([1]), "loud": loud})
    found = recorded_calls.compared_outputs(_FORWARD, output)
    assert [tensor.shape for tensor in found] == [(2,), (3,)]
    second = Objective(module="d", loss="mse", outputs=(1,))
    assert recorded_calls.compared_outputs(second, output)[0] is loud
    with pytest.raises(ModelError, match="returned 1 floating-point tensors"):
        recorded_calls.compared_outputs(second, hidden)
    with pytest.raises(ModelError, match="returned 0 floating-point tensors"):
        recorded_calls.compared_outputs(_FORWARD, torch.tensor([1]))
