"""Bare graphs: what they want to be called with, and files that give it."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import Values, make_model, make_node
from tts_compress.artifact import Manifest
from tts_compress.errors import ModelError, RecipeError
from tts_compress.models import load, open_model
from tts_compress.models.base import GraphModel, OnnxGraph, TTSModel
from tts_compress.models.feeds import graph_inputs, open_feeds
from tts_compress.models.onnx_model import OnnxModel


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the file of a graph with two inputs, one of a free length, and one weight."""
    nodes = [
        make_node("Conv", "mel head.conv.weight", "a", "Conv_0"),
        make_node("Mul", "a gain", "audio", "Mul_1"),
    ]
    inputs: Values = {"mel": ["B", 3, "T"], "gain": [1]}
    outputs = {"audio": ["B", 4, "T"]}
    model = make_model(nodes, inputs, outputs, {"head.conv.weight": np.ones((4, 3, 1))})
    onnx.save(model, tmp_path / "bare.onnx")
    return tmp_path / "bare.onnx"


def _call(frames: int, call: int = 0, **changes: Any) -> dict[str, Any]:
    arrays = {"mel": np.zeros((1, 3, frames), np.float32), "gain": np.ones(1, np.float32)}
    return {f"{call}/{name}": value for name, value in (arrays | changes).items()}


def test_bare_graph_is_a_graph_that_does_not_speak(path: Path) -> None:
    found = open_model(f"onnx:{path}")
    assert isinstance(found, OnnxGraph)
    assert not isinstance(found, TTSModel | GraphModel)
    assert (found.family, found.spec, found.manifest) == ("onnx", f"onnx:{path}", None)
    assert found.files().weights[0] == path
    assert [n.op_type for n in found.graph().graph.node] == ["Conv", "Mul"]
    assert {name: part.parameters for name, part in found.components().items()} == {"head": 12}
    assert found.describe()["inputs"] == "mel float32 [B, 3, T], gain float32 [1]"


def test_path_alone_stays_a_voice_unless_arrays_are_given(path: Path) -> None:
    with pytest.raises(ModelError, match=r"no file '.*bare\.onnx\.json'.*'onnx:' before the path"):
        open_model(path)
    assert isinstance(open_model(path, bare=True), OnnxModel)


def test_voice_stays_a_voice_where_arrays_are_given(tiny_path: Path) -> None:
    assert open_model(tiny_path, bare=True).family == "piper"


def test_bare_graph_cannot_be_loaded_to_speak(path: Path) -> None:
    with pytest.raises(ModelError, match="bare ONNX graph, which speaks no texts"):
        load(f"onnx:{path}")


def test_saved_graph_is_the_same_file(path: Path, tmp_path: Path) -> None:
    folder = open_model(f"onnx:{path}").save(tmp_path / "copy")
    assert [file.name for file in folder.iterdir()] == ["bare.onnx"]
    assert (folder / "bare.onnx").read_bytes() == path.read_bytes()


def test_weights_in_files_of_their_own_are_saved_too(path: Path, tmp_path: Path) -> None:
    split = tmp_path / "split" / "graph.onnx"
    split.parent.mkdir()
    onnx.save(onnx.load(path), split, save_as_external_data=True, size_threshold=0)
    saved = open_model(f"onnx:{split}").save(tmp_path / "saved")
    assert [p.name for p in saved.iterdir()] == ["graph.onnx"]
    [weight] = onnx.load(saved / "graph.onnx").graph.initializer
    assert np.array_equal(numpy_helper.to_array(weight), np.ones((4, 3, 1)))


def test_graph_in_memory_has_no_file(path: Path) -> None:
    model = open_model(f"onnx:{path}")
    assert isinstance(model, OnnxGraph)
    manifest = Manifest.from_json(json.dumps(_MANIFEST))
    other = model.with_graphs({"": model.graph()}, manifest)
    assert other.manifest == manifest
    with pytest.raises(ModelError, match=r"call save\(\) first"):
        other.files().weights[0]


_MANIFEST = {
    "family": "onnx",
    "scheme": "int8",
    "recipe": {},
    "layers": [],
    "counts": {},
    "seed": 0,
    "source": {"spec": "x", "sha256": "", "size_bytes": 1},
    "calibration": None,
    "environment": {},
    "format_version": 1,
}


def test_calls_of_any_length_are_read_in_order(path: Path, tmp_path: Path) -> None:
    """An input may be empty, as a language model's past in its first call."""
    calls = [_call(frames, number) for number, frames in enumerate((5, 0, 2))]
    np.savez(tmp_path / "feeds.npz", **{k: v for call in reversed(calls) for k, v in call.items()})
    found = open_feeds(tmp_path / "feeds.npz", graph_inputs(onnx.load(path)))
    assert (found.calls, found.inputs) == (3, ("mel", "gain"))
    assert [feeds["mel"].shape[2] for feeds in found.read(9)] == [5, 0, 2]
    assert len(list(found.read(2))) == 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "holds no calls"),
        ({"mel": np.zeros(1)}, "'mel' is not named '<call>/<input>'"),
        ({"00/mel": np.zeros(1)}, "'00/mel' is not named"),
        (_call(5) | {"0/pitch": np.zeros(1)}, "'0/pitch': no such input; .* are mel, gain"),
        (_call(5) | _call(5, 2), r"call 1 is missing"),
        (_call(5, 1), r"call 0 is missing"),
        ({"0/mel": np.zeros((1, 3, 2), np.float32)}, "call 0 lacks input 'gain'"),
        (_call(5, mel=np.zeros((3, 5), np.float32)), r"has shape \[3, 5\]; .* mel float32 \[B, 3"),
        (_call(5, mel=np.zeros((1, 4, 5), np.float32)), r"has shape \[1, 4, 5\]"),
        (_call(5, mel=np.zeros((1, 3, 5))), r"is float64; .*astype"),
        (
            _call(5)
            | {"1/mel": np.zeros((1, 3, 0), np.float32), "1/gain": np.zeros(0, np.float32)},
            "every array of call 1 is empty: leave it out",
        ),
        (_call(5, mel=np.full((1, 3, 5), np.nan, np.float32)), "not finite"),
        (_call(5, mel=np.array([{}], object)), "pickled objects are never loaded"),
        (_call(5, mel=np.zeros((1, 3, 5), [("a", "f4")])), r"of type .*'a'.*; give numbers"),
        (_call(5, mel=np.zeros((1, 3, 5), "M8[s]")), "of type datetime64.*; give numbers"),
    ],
)
def test_calls_that_do_not_fit_are_refused(
    path: Path, tmp_path: Path, arrays: dict[str, Any], message: str
) -> None:
    np.savez(tmp_path / "feeds.npz", **arrays)
    with pytest.raises(RecipeError, match=message) as caught:
        open_feeds(tmp_path / "feeds.npz", graph_inputs(onnx.load(path)))
    assert re.search(r"name arrays '<call>/<input>', such as '0/mel'", str(caught.value))


def test_file_that_is_no_npz_is_refused(path: Path, tmp_path: Path) -> None:
    expected = graph_inputs(onnx.load(path))
    np.savez(tmp_path / "whole.npz", **_call(500))
    whole = (tmp_path / "whole.npz").read_bytes()
    half = len(whole) // 2
    flipped = whole[:half] + bytes([whole[half] ^ 255]) + whole[half + 1 :]
    wrong = [b"", b"PK\3\4 cut", b"junk" * 99, b"\x93NUMPY", b"\x80\4."]
    file = tmp_path / "feeds.npz"
    for content in (*wrong, whole[:half], whole[:-30], flipped):
        file.write_bytes(content)
        with pytest.raises(RecipeError, match="cannot read"):
            open_feeds(file, expected)
    with file.open("wb") as opened:
        np.save(opened, np.zeros(3))
    with pytest.raises(RecipeError, match="not a zip file; name arrays"):
        open_feeds(file, expected)
    with pytest.raises(RecipeError, match="no file"):
        open_feeds(tmp_path / "nothing.npz", expected)


def test_input_that_is_no_tensor_is_refused(path: Path) -> None:
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None))
    with pytest.raises(ModelError, match="input 's' of the graph is no tensor"):
        graph_inputs(model)


def test_names_of_inputs_and_outputs_are_shown_on_one_line(path: Path) -> None:
    """A line of its own in a log of GitHub is a command to it."""
    model = onnx.load(path)
    model.graph.node[1].output[0] = model.graph.output[0].name = "audio\n::error::pwned"
    model.graph.node[0].input[0] = model.graph.input[0].name = "mel\n::error::pwned"
    onnx.save(model, path)
    opened = open_model(f"onnx:{path}")
    assert isinstance(opened, OnnxGraph)
    shown = opened.describe()
    assert shown["outputs"] == "audio ::error::pwned"
    assert "\n" not in shown["inputs"]
