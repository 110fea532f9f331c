"""A graph behind a module's call."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from tts_compress.errors import ModelError

torch = pytest.importorskip("torch")

from tts_compress.export import OnnxDac, OnnxModule  # noqa: E402
from tts_compress.export.graphs import write_graph  # noqa: E402


class Pair(torch.nn.Module):  # type: ignore[name-defined, misc]
    """Two inputs that cannot be exchanged."""

    def forward(self, a: Any, b: Any) -> Any:
        """Return a · b, rows of a (n, 3) by columns of b (3, n)."""
        return a @ b


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    examples = (torch.zeros(2, 3), torch.zeros(3, 2))
    inputs, outputs = {"a": {0: "n"}, "b": {1: "n"}}, {"y": {0: "n", 1: "n"}}
    file = tmp_path_factory.mktemp("graph") / "pair.onnx"
    return write_graph(Pair(), examples, inputs, outputs, file)


def test_it_is_called_as_the_module_is(path: Path) -> None:
    module = OnnxModule(path, threads=1)
    a, b = torch.randn(5, 3), torch.randn(3, 5)
    expected = a @ b
    for given in (
        module(a, b),
        module(a, b=b),
        module(b=b, a=a),
        module(a.double(), b.T.contiguous().T),
        module(a.requires_grad_(), b),
    ):
        assert torch.allclose(given, expected, atol=1e-6)
        assert not given.requires_grad


def test_copies_open_the_file_again(path: Path) -> None:
    module = OnnxModule(path, threads=1)
    a, b = torch.randn(5, 3), torch.randn(3, 5)
    held = torch.nn.ModuleDict({"part": module})
    for other in (copy.deepcopy(held)["part"], pickle.loads(pickle.dumps(module))):  # noqa: S301
        assert other is not module
        assert torch.equal(other(a, b), module(a, b))


def test_wrong_calls_say_what_is_wanted(path: Path) -> None:
    module = OnnxModule(path)
    a, b = torch.randn(5, 3), torch.randn(3, 5)
    for tensors, named in (((a,), {}), ((a, b, b), {}), ((a,), {"c": b}), ((), {"a": a})):
        with pytest.raises(ModelError, match="it wants a, b"):
            module(*tensors, **named)
    with pytest.raises(ModelError, match="cannot be run"):
        module(b, a)


def test_missing_file_and_wrong_codes(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no file"):
        OnnxModule(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match=r"shape \[5, 3\]; give \(B, codebooks, frames\)"):
        OnnxDac(path).decode(torch.zeros(5, 3))
