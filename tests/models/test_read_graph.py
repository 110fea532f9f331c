"""Untrusted files end in a graph or in one clear error."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import make_model, make_node, run_model
from tts_compress.errors import ModelError
from tts_compress.models.graph_file import read_graph


def _model(weight: npt.NDArray[np.generic]) -> onnx.ModelProto:
    return make_model([make_node("Identity", "w", "y")], {}, {"y": None}, {"w": weight})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An ONNX file with one weight."""
    path = tmp_path / "voice.onnx"
    onnx.save(_model(np.arange(1000, dtype=np.float32)), path)
    return path


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name, message in (("nothing.onnx", r"^no file '"), ("a" * 300, "is not a readable ONNX")):
        with pytest.raises(ModelError, match=message):
            read_graph(tmp_path / name)


@pytest.mark.parametrize("kept", [0, 1, 50, 1000, -1])
def test_truncated_file_is_refused(file: Path, kept: int) -> None:
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"voice\.onnx"):
        read_graph(file)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(ModelError):
        read_graph(file)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes_are_read_or_refused(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    """A changed byte may be harmless; it must never be another exception."""
    content = bytearray(_model(np.arange(20, dtype=np.float32)).SerializeToString())
    for place, value in flips:
        content[place % len(content)] = value
    path = tmp_path / "flipped.onnx"
    path.write_bytes(content)
    with contextlib.suppress(ModelError):
        read_graph(path)


@pytest.mark.parametrize(
    ("dtype", "value"), [(np.float32, np.nan), (np.float16, np.inf), (np.float64, -np.inf)]
)
def test_weights_that_are_not_finite_are_refused(
    tmp_path: Path, value: float, dtype: type[np.floating]
) -> None:
    model = _model(np.array([[1.0, value]], dtype))
    model.graph.node.insert(0, make_node("MatMul", "x w", "z"))
    onnx.save(model, tmp_path / "voice.onnx")
    with pytest.raises(ModelError, match=r"weight 'w' has values that are not finite; .* in masks"):
        read_graph(tmp_path / "voice.onnx")


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinities_that_nothing_multiplies_are_read(tmp_path: Path, value: float) -> None:
    """Masks of attention hold -inf, and bounds of a clip both."""
    onnx.save(_model(np.array([1.0, value], np.float32)), tmp_path / "voice.onnx")
    assert len(read_graph(tmp_path / "voice.onnx").graph.node) == 1


def _outside(folder: Path, location: str) -> Path:
    """Write a model whose weight is in another file."""
    model = _model(np.arange(1000, dtype=np.float32))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    path = folder / "voice.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "../../secret", "link"])
def test_weights_outside_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "voice").mkdir()
    (tmp_path / "secret").write_bytes(bytes(4000))
    (tmp_path / "voice" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelError, match=r"voice\.onnx"):
        read_graph(_outside(tmp_path / "voice", location))


def test_weight_with_too_few_values_is_refused(tmp_path: Path) -> None:
    model = _model(np.arange(10, dtype=np.float32))
    model.graph.initializer[0].dims[0] = 11
    onnx.save(model, tmp_path / "voice.onnx")
    with pytest.raises(ModelError, match="weight 'w' is malformed"):
        read_graph(tmp_path / "voice.onnx")


def _in_constant(tensor: TensorProto) -> onnx.ModelProto:
    model = _model(np.zeros(2, np.float32))
    model.graph.node.append(make_node("Constant", "", "held", value=tensor))
    return model


def _in_branch(tensor: TensorProto) -> onnx.ModelProto:
    model = _model(np.zeros(2, np.float32))
    output = helper.make_tensor_value_info("held", TensorProto.FLOAT, None)
    branch = helper.make_graph([make_node("Identity", "t", "held")], "b", [], [output], [tensor])
    model.graph.node.append(make_node("If", "w", "z", then_branch=branch, else_branch=branch))
    return model


def _in_function(tensor: TensorProto) -> onnx.ModelProto:
    model = _model(np.zeros(2, np.float32))
    node = make_node("Constant", "", "held", value=tensor)
    opsets = [helper.make_opsetid("", 15)]
    model.functions.append(helper.make_function("own", "Held", [], ["held"], [node], opsets))
    return model


_PLACES = [_in_constant, _in_branch, _in_function]


@pytest.mark.parametrize("place", _PLACES)
def test_weights_of_every_place_have_a_bound(
    tmp_path: Path, place: Callable[[TensorProto], onnx.ModelProto]
) -> None:
    """A file of 5 GB without content, named by a constant, filled 10 GB of memory."""
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[1 << 30])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    (tmp_path / "voice.onnx").write_bytes(place(tensor).SerializeToString())
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(4 << 30)
    with pytest.raises(ModelError, match=r"at most 2,147,483,647 are accepted"):
        read_graph(tmp_path / "voice.onnx")


@pytest.mark.parametrize("place", _PLACES)
def test_nan_of_every_place_is_refused(
    tmp_path: Path, place: Callable[[TensorProto], onnx.ModelProto]
) -> None:
    model = place(numpy_helper.from_array(np.array([np.nan], np.float32), "t"))
    onnx.save(model, tmp_path / "voice.onnx")
    with pytest.raises(ModelError, match="values that are not finite"):
        read_graph(tmp_path / "voice.onnx")


@pytest.mark.parametrize("name", ["node_name", "the_output", "the_weight", "the_domain"])
def test_names_that_are_not_utf8_are_refused(tmp_path: Path, name: str) -> None:
    """Protocol buffers give such a name as bytes, which the first comparison with text ended."""
    node = make_node("Identity", "the_weight", "the_output", "node_name")
    content = make_model(
        [node],
        {},
        {"the_output": None},
        {"the_weight": np.ones(2, np.float32)},
        domains=("the_domain",),
    ).SerializeToString()
    broken = content.replace(name.encode(), name.encode()[:-1] + b"\xff")
    (tmp_path / "voice.onnx").write_bytes(broken)
    with pytest.raises(ModelError, match=r"not a readable ONNX file: .*which is not UTF-8"):
        read_graph(tmp_path / "voice.onnx")


_W = np.ones((2, 3), np.float32)


@pytest.mark.parametrize("version", [3, 8], ids=["old", "new"])
def test_weights_that_are_inputs_are_weights(tmp_path: Path, version: int) -> None:
    """Older files list all; an input with a value of its own stays where no weight is listed."""
    model = make_model([make_node("MatMul", "x w", "y")], {"x": [1, 2]}, {"y": None}, {"w": _W})
    model.ir_version = version
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [2, 3]))
    onnx.save(model, tmp_path / "voice.onnx")
    read = read_graph(tmp_path / "voice.onnx")
    assert [value.name for value in read.graph.input] == ["x"]
    assert read.ir_version >= 4


def test_an_input_with_a_value_of_its_own_stays_one(tmp_path: Path) -> None:
    model = make_model([make_node("Mul", "x speed", "y")], {"x": [1, 2]}, {"y": None}, {"speed": 1})
    model.graph.input.append(helper.make_tensor_value_info("speed", TensorProto.INT64, []))
    onnx.save(model, tmp_path / "voice.onnx")
    assert len(read_graph(tmp_path / "voice.onnx").graph.input) == 2


def test_the_long_name_of_the_standard_operators_is_read(tmp_path: Path) -> None:
    model = make_model([make_node("MatMul", "x w", "y")], {"x": [1, 2]}, {"y": None}, {"w": _W})
    model.opset_import[0].domain = model.graph.node[0].domain = "ai.onnx"
    onnx.save(model, tmp_path / "voice.onnx")
    read = read_graph(tmp_path / "voice.onnx")
    assert [read.opset_import[0].domain, read.graph.node[0].domain] == ["", ""]


def test_a_function_may_use_the_long_name(tmp_path: Path) -> None:
    """The runtime wants an operator set of the function for each operator in it."""
    model = make_model([make_node("Twice", "x", "y", domain="own")], {"x": [1, 2]}, {"y": None})
    body, opsets = make_node("Add", "a a", "b", domain="ai.onnx"), [helper.make_opsetid("", 15)]
    function = helper.make_function("own", "Twice", ["a"], ["b"], [body], opsets)
    function.opset_import[0].domain = "ai.onnx"
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    onnx.save(model, tmp_path / "voice.onnx")
    feeds = {"x": np.ones((1, 2), np.float32)}
    assert (run_model(read_graph(tmp_path / "voice.onnx"), feeds)[0] == 2).all()
