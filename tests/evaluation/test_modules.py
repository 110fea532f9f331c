"""Two torch modules beside each other: size, speed and error on the user's batches."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tts_compress import EvaluationOptions, ModuleEvaluation, compress, evaluate
from tts_compress.errors import EvaluationError, ModelError, RecipeError

_QUICK = EvaluationOptions(timing_runs=2)


class _Two(nn.Module):
    """Two outputs by name, noise, dropout, and an input that it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 8)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> dict[str, Any]:
        """Return hidden values, and scores of which one is ruled out."""
        x += 1
        hidden = self.dropout(torch.relu(self.first(x)) + torch.randn(64))
        scores = self.last(hidden)
        return {"hidden": (hidden,), "scores": scores.index_fill(-1, torch.tensor(0), -torch.inf)}


@pytest.fixture
def module() -> nn.Module:
    """Return a seeded network in training mode."""
    torch.manual_seed(0)
    return _Two().train()


def _batches() -> list[Tensor]:
    source = torch.Generator().manual_seed(1)
    return [torch.randn(4, 64, generator=source) for _ in range(3)]


def test_size_speed_and_error_of_each_output(module: nn.Module, tmp_path: Path) -> None:
    """A raw AttributeError said that a Sequential has no attribute 'files'."""
    small = compress(module, "int8")
    given = _batches()
    found = evaluate(module, small, batches=given, output=tmp_path / "out", options=_QUICK)
    assert isinstance(found, ModuleEvaluation)
    assert found.reference_bytes == 4 * (64 * 64 + 64 + 64 * 8 + 8)
    assert found.candidate_bytes < found.reference_bytes / 2
    assert found.reference_ms > 0
    assert found.candidate_ms > 0
    assert [output.name for output in found.outputs] == ["hidden.0", "scores"]
    for output in found.outputs:
        assert output.snr_db is not None
        assert output.worst_snr_db is not None
        assert 25 < output.worst_snr_db <= output.snr_db
        assert output.relative_error == pytest.approx(10 ** (-output.snr_db / 20))
    assert module.training, "the original is as it was"
    assert all(torch.equal(*pair) for pair in zip(given, _batches(), strict=True))
    written = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert written["outputs"][1]["name"] == "scores"
    assert written["candidate_bytes"] == found.candidate_bytes
    lines = str(found).splitlines()
    assert lines[0].startswith("tensors ")
    assert "× smaller" in lines[0]
    assert lines[1].startswith("a call ")
    assert lines[3].startswith("output 'scores': signal-to-noise ratio ")


def test_the_worst_batch_is_the_one_of_the_largest_error() -> None:
    net = nn.Linear(4, 4, bias=False)
    other = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.eye(4))
        other.weight.copy_(torch.diag(torch.tensor([1.0, 1.0, 1.0, 1.1])))
    batches = [torch.eye(4)[:2], torch.eye(4)[3:], torch.eye(4)[1:]]
    (output,) = evaluate(net, other, batches=batches, options=_QUICK).outputs
    assert (output.name, output.worst_batch) == ("", 1)
    assert output.worst_snr_db == pytest.approx(20, abs=1e-4)
    assert output.snr_db == pytest.approx(10 * torch.log10(torch.tensor(6 / 0.02)).item(), abs=1e-3)
    equal = evaluate(net, net, batches=batches, options=_QUICK)
    assert (equal.outputs[0].snr_db, equal.outputs[0].relative_error) == (None, 0)
    assert str(equal).endswith("output: no difference")


def test_without_what_it_needs_it_says_what_to_give(module: nn.Module) -> None:
    anything: Any = evaluate
    small = compress(module, "int8")
    needless: tuple[Any, ...] = (None, [], torch.ones(4, 64), "en-quick")
    for batches in needless:
        with pytest.raises(EvaluationError, match=r"speaks no texts: .* batches=\[\.\.\.\]"):
            anything(module, small, batches=batches)
    for pair in ((module, "demo"), ("demo", small)):
        with pytest.raises(EvaluationError, match="give the module, what compress made of it,"):
            anything(*pair, batches=_batches())
    with pytest.raises(EvaluationError, match="batches are inputs of torch modules"):
        anything("demo", "demo", batches=_batches())
    with pytest.raises(RecipeError, match=r"cannot be called with batch 1 .*, a Tensor: "):
        evaluate(module, small, batches=[_batches()[0], torch.ones(3)])


def test_what_speaks_no_texts_is_refused_in_plain_words() -> None:
    anything: Any = evaluate
    with pytest.raises(ModelError, match=r"'object' speaks no texts, .*two torch modules with"):
        anything(object(), object())


def test_modules_that_do_not_return_the_same_are_refused() -> None:
    net, wide = nn.Linear(4, 4), nn.Linear(4, 5)
    with pytest.raises(EvaluationError, match=r"\(2, 4\).* and the candidate .*\(2, 5\)"):
        evaluate(net, wide, batches=[torch.ones(2, 4)], options=_QUICK)
    broken = nn.Linear(4, 4)
    with torch.no_grad():
        broken.bias[0] = torch.nan
    with pytest.raises(EvaluationError, match="a value is NaN, or infinite on one side only"):
        evaluate(net, broken, batches=[torch.ones(2, 4)], options=_QUICK)
