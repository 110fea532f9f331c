"""Noise that is fed means what the random operator meant, and pairs two graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tts_compress.errors import ModelError
from tts_compress.onnx.noise import NOISE_LENGTH, draw_noise, feed_noise, noise_inputs
from tts_compress.onnx.session import input_names, open_session

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


@pytest.fixture(scope="session")
def random_graph() -> Callable[..., onnx.ModelProto]:
    """Build a graph whose outputs are random, one per operator, of the input's shape."""

    def build(*operators: str, **attributes: Any) -> onnx.ModelProto:
        kinds = operators or ("RandomNormalLike",)
        nodes = [
            helper.make_node(kind, ["x"] if kind.endswith("Like") else [], [f"y{i}"], **attributes)
            for i, kind in enumerate(kinds)
        ]
        dtype = attributes.get("dtype", TensorProto.FLOAT)
        outputs = [helper.make_tensor_value_info(f"y{i}", dtype, None) for i in range(len(kinds))]
        source = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "c", "t"])
        graph = helper.make_graph(nodes, "random", [source], outputs)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)

    return build


def _run(model: onnx.ModelProto, shape: tuple[int, ...], **feeds: Any) -> list[npt.NDArray[Any]]:
    session = open_session(model, "test")
    names = noise_inputs(input_names(session))
    noise = {name: feeds[f"n{i}"] for i, name in enumerate(names)}
    return list(session.run(None, {"x": np.zeros(shape, np.float32)} | noise))


@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(1, 9)),
    length=st.integers(1, 40),
)
def test_values_fill_time_step_by_time_step(
    random_graph: Callable[..., onnx.ModelProto], shape: tuple[int, int, int], length: int
) -> None:
    """Against a plain numpy statement of the same; too few values are repeated."""
    values = np.arange(length, dtype=np.float32)
    (found,) = _run(feed_noise(random_graph()), shape, n0=values)
    batch, channels, time = shape
    wanted = np.resize(values, batch * time * channels).reshape(batch, time, channels)
    np.testing.assert_array_equal(found, wanted.transpose(0, 2, 1))


def test_mean_and_scale_of_the_operator_are_kept(
    random_graph: Callable[..., onnx.ModelProto],
) -> None:
    values = np.array([-1.0, 0.0, 2.0], np.float32)
    (found,) = _run(feed_noise(random_graph(mean=3.0, scale=0.5)), (1, 1, 3), n0=values)
    np.testing.assert_allclose(found.reshape(-1), 3 + 0.5 * values)


def test_element_type_of_the_operator_is_kept(random_graph: Callable[..., onnx.ModelProto]) -> None:
    (found,) = _run(
        feed_noise(random_graph(dtype=TensorProto.DOUBLE)), (1, 2, 3), n0=np.ones(6, np.float32)
    )
    assert found.dtype == np.float64


def test_longer_graph_gets_the_same_noise_at_the_same_time(
    random_graph: Callable[..., onnx.ModelProto],
) -> None:
    """A candidate that speaks a frame longer is still paired up to there."""
    fed = feed_noise(random_graph())
    values = np.random.default_rng(0).normal(size=200).astype(np.float32)
    (short,), (long,) = _run(fed, (1, 4, 20), n0=values), _run(fed, (1, 4, 21), n0=values)
    np.testing.assert_array_equal(short, long[:, :, :20])


def test_every_operator_has_its_own_input(random_graph: Callable[..., onnx.ModelProto]) -> None:
    fed = feed_noise(random_graph(*["RandomNormalLike"] * 12))
    names = noise_inputs([value.name for value in fed.graph.input])
    feeds = {f"n{i}": np.full(1, i, np.float32) for i in range(12)}
    assert len(names) == 12
    assert [y.item() for y in _run(fed, (1, 1, 1), **feeds)] == list(range(12))


def test_original_is_not_changed(random_graph: Callable[..., onnx.ModelProto]) -> None:
    graph = random_graph()
    before = graph.SerializeToString()
    feed_noise(graph)
    assert graph.SerializeToString() == before


def test_graph_without_noise_stays_as_it_is(random_graph: Callable[..., onnx.ModelProto]) -> None:
    graph = random_graph("Identity")
    graph.graph.node[0].input.append("x")
    assert feed_noise(graph) == graph


@pytest.mark.parametrize("operator", ["RandomUniformLike", "RandomUniform", "RandomNormal"])
def test_other_randomness_cannot_be_paired(
    random_graph: Callable[..., onnx.ModelProto], operator: str
) -> None:
    with pytest.raises(ModelError, match=f"{operator}; only RandomNormalLike"):
        feed_noise(random_graph(operator))


def test_same_seed_draws_the_same_and_another_draws_another() -> None:
    names = [f"tts_compress.noise.{i}" for i in (0, 1, 10, 2)]
    first, again = draw_noise(["input", *names], seed=(3, 0)), draw_noise(names, seed=(3, 0))
    assert list(first) == [f"tts_compress.noise.{i}" for i in (0, 1, 2, 10)]
    for name in names:
        np.testing.assert_array_equal(first[name], again[name])
        assert first[name].shape == (NOISE_LENGTH,)
        assert first[name].dtype == np.float32
        assert abs(first[name].mean()) < 0.01
        assert abs(first[name].std() - 1) < 0.01
    drawn = [first[names[0]], first[names[1]], draw_noise(names, seed=(4, 0))[names[0]]]
    drawn += [draw_noise(names, seed=(3, 1))[names[0]]]
    correlation = np.corrcoef(drawn) - np.eye(4)
    assert np.abs(correlation).max() < 0.02


def test_no_seed_means_zeros() -> None:
    assert not draw_noise(["tts_compress.noise.0"], seed=None)["tts_compress.noise.0"].any()
