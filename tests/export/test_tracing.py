"""From a module to a file: names, free axes, errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
import pytest

from tts_compress.errors import ArtifactError, ModelError

torch = pytest.importorskip("torch")

from tts_compress.export.tracing import OPSET, Signature, trace, write_graph  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

_SIGNATURE = Signature(inputs={"x": {0: "n"}}, outputs={"y": {0: "n"}})


class Refusing(torch.nn.Module):  # type: ignore[name-defined, misc]
    """A module whose own code fails."""

    def forward(self, x: Any) -> Any:
        """Fail."""
        raise ValueError(f"no {x.shape[0]} rows\nsecond line")


def test_graph_has_the_names_and_free_axes() -> None:
    graph = trace(torch.nn.Linear(3, 2).eval(), (torch.zeros(4, 3),), _SIGNATURE)
    (given,), (made,) = graph.graph.input, graph.graph.output
    assert (given.name, made.name) == ("x", "y")
    assert given.type.tensor_type.shape.dim[0].dim_param == "n"
    assert {o.version for o in graph.opset_import if not o.domain} == {OPSET}


def test_what_cannot_be_followed_is_a_model_error() -> None:
    with pytest.raises(ModelError, match=r"Refusing cannot be exported to ONNX: no 4 rows$"):
        trace(Refusing(), (torch.zeros(4, 3),), _SIGNATURE)


def test_file_is_whole_or_not_there(tmp_path: Path) -> None:
    graph = trace(torch.nn.Linear(3, 2).eval(), (torch.zeros(4, 3),), _SIGNATURE)
    path = write_graph(graph, tmp_path / "graph.onnx")
    assert onnx.load(path) == graph
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ArtifactError, match="cannot write"):
        write_graph(graph, tmp_path / "nowhere" / "graph.onnx")
