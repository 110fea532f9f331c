"""From a module to a file: copies that share tensors, names, free axes, errors."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from tts_compress.errors import ArtifactError, ModelError

torch = pytest.importorskip("torch")

from tts_compress.export.graphs import OPSET, copy_shell, write_graph  # noqa: E402


def _write(module: Any, path: Path) -> Path:
    return write_graph(module, (torch.zeros(4, 3),), {"x": {0: "n"}}, {"y": {0: "n"}}, path)


class Refusing(torch.nn.Module):  # type: ignore[name-defined, misc]
    """A module whose own code fails."""

    def forward(self, x: Any) -> Any:
        """Fail."""
        raise ValueError(f"no {x.shape[0]} rows\nsecond line")


def test_graph_has_the_names_and_free_axes(tmp_path: Path) -> None:
    graph = onnx.load(_write(torch.nn.Linear(3, 2).eval(), tmp_path / "graph.onnx"))
    (given,), (made,) = graph.graph.input, graph.graph.output
    assert (given.name, made.name) == ("x", "y")
    assert given.type.tensor_type.shape.dim[0].dim_param == "n"
    assert {o.version for o in graph.opset_import if not o.domain} == {OPSET}


def test_what_cannot_be_followed_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"Refusing cannot be exported to ONNX: no 4 rows$"):
        _write(Refusing(), tmp_path / "graph.onnx")
    assert not list(tmp_path.iterdir())


def test_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = _write(torch.nn.Linear(3, 2).eval(), tmp_path / "graph.onnx")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ArtifactError, match="cannot write"):
        _write(torch.nn.Linear(3, 2).eval(), tmp_path / "nowhere" / "graph.onnx")


_NORMS = {
    "hook": torch.nn.utils.weight_norm,
    "parametrization": torch.nn.utils.parametrizations.weight_norm,
}


def _network(norm: Callable[[Any], Any]) -> Any:
    torch.manual_seed(0)
    layers = [norm(torch.nn.Conv1d(2, 3, 3)), torch.nn.GELU(), norm(torch.nn.Conv1d(3, 2, 3))]
    return torch.nn.Sequential(*layers, torch.nn.Conv1d(2, 2, 1))


@pytest.mark.parametrize("norm", _NORMS)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_weight_norm_is_folded_in_the_copy_only(norm: str) -> None:
    """The removal that torch has takes the weight from the class, which both would lose."""
    network = _network(_NORMS[norm])
    inputs = torch.randn(1, 2, 9)
    expected = network(inputs)  # with gradients, so that computed weights are no leaves
    names = [name for name, _ in network.named_parameters()]
    shell: Any = copy_shell(network)
    assert [name for name, _ in shell[0].named_parameters()] in (
        ["weight", "bias"],
        ["bias", "weight"],
    )
    assert type(shell[0]) is torch.nn.Conv1d
    assert torch.equal(shell(inputs), expected)
    assert torch.equal(network(inputs), expected)
    assert [name for name, _ in network.named_parameters()] == names
    with torch.no_grad():
        network[0].bias += 1
    assert not torch.equal(network(inputs), expected)


def test_tensors_are_shared_and_modes_are_not() -> None:
    network = _network(lambda module: module).train()
    network.kept = threading.local()  # which nothing can copy
    shell: Any = copy_shell(network)
    assert shell[3].weight is network[3].weight
    assert not shell.training
    assert network.training
    shell[1] = torch.nn.Identity()
    assert type(shell[1]) is torch.nn.Identity
    assert type(network[1]) is torch.nn.GELU
