"""The portable form in a second runtime: OpenVINO loads it, runs it in integers, and agrees."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.measures import snr_db
from tts_compress import find_recipe
from tts_compress.compression import compress
from tts_compress.environment import describe_processor
from tts_compress.models import load
from tts_compress.models.base import GraphModel
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.session import open_session, run_session

openvino: Any = pytest.importorskip(
    "openvino", reason="OpenVINO, the second runtime, is not installed; `make install` brings it"
)

pytestmark = pytest.mark.slow

_TEXTS = ("Please call Stella.", "The quick brown fox jumps over the lazy dog.")

_AGREE_DB = 25
"""Both runtimes round at the same places, but add in another order in between, which tips a value
that lies between two codes; 28 to 48 dB were measured over four texts. Rounding itself leaves 24 to
37 dB, so the two must also be nearer to each other than to FP32."""

_NEARER_DB = 3
"""Largest difference of their SNRs to FP32, in dB; at most 1.1 dB were measured."""


@pytest.fixture(scope="module")
def portable(demo: Path, quick_recipe: Callable[[str], Path]) -> GraphModel:
    """Return the demo voice by the `int8` recipe, in standard operators."""
    assert demo.is_file()
    recipe = find_recipe("piper", "int8", quick_recipe("int8"))
    changes = {"format": "qdq"}
    small = compress(load("demo"), "int8", recipe=recipe.model_copy(update=changes), quality="fast")
    assert isinstance(small, GraphModel)
    return small


@pytest.fixture(scope="module")
def compiled(portable: GraphModel) -> Any:
    """Return it in OpenVINO, which would take bfloat16 for FP32 where there is hardware for it."""
    core = openvino.Core()
    graph = core.read_model(_given_durations(portable).SerializeToString())
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    return core.compile_model(graph, "CPU", settings)


def _given_durations(voice: GraphModel) -> onnx.ModelProto:
    """Return a voice's graph with noise and durations among its inputs.

    A duration near a whole frame is rounded up by one graph only, and what follows is compared
    with something else; with equal durations every sample has its counterpart.
    """
    graph = feed_noise(voice.graph())
    (ceil,) = (node for node in graph.graph.node if node.op_type == "Ceil")
    graph.graph.input.append(
        onnx.helper.make_tensor_value_info(ceil.output[0], onnx.TensorProto.FLOAT, [None] * 3)
    )
    graph.graph.node.remove(ceil)
    return graph


def _computed_durations(voice: GraphModel, calls: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the durations that a voice's own graph computes, for the input that replaces them."""
    graph = feed_noise(voice.graph())
    (name,) = (node.output[0] for node in graph.graph.node if node.op_type == "Ceil")
    graph.graph.output.append(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
    )
    session = open_session(graph, "demo", threads=1)
    return [{name: run_session(session, feeds, "demo", [name])[0]} for feeds in calls]


@pytest.mark.slow
def test_it_speaks_the_same_as_in_onnxruntime(portable: GraphModel, compiled: Any) -> None:
    voice = load("demo")
    assert isinstance(voice, GraphModel)
    here = open_session(_given_durations(portable), "portable", threads=1)
    real = open_session(_given_durations(voice), "FP32", threads=1)
    quiet = [
        feeds | {"scales": feeds["scales"] * np.array([0, 1, 1], np.float32)}
        for feeds in voice.calibration_calls(_TEXTS, seed=3)
    ]
    for feeds, durations in zip(quiet, _computed_durations(voice, quiet), strict=True):
        given = feeds | durations
        there = np.asarray(compiled(given)[0])
        ours, wanted = (run_session(session, given, "demo")[0] for session in (here, real))
        assert np.isfinite(there).all()
        assert there.std() > 0.01
        assert there.shape == ours.shape == wanted.shape
        assert snr_db(ours, there) > max(_AGREE_DB, snr_db(wanted, ours))
        assert abs(snr_db(wanted, ours) - snr_db(wanted, there)) < _NEARER_DB


@pytest.mark.skipif(
    "VNNI" not in describe_processor().integer_kernels.replace("without VNNI", ""),
    reason="which layers OpenVINO computes in integers depends on the processor; this one is none "
    "of those it was tried on (x86 with VNNI)",
)
def test_it_computes_in_integers_what_the_manifest_says(
    portable: GraphModel, compiled: Any
) -> None:
    assert portable.manifest is not None
    layers = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    kinds = [
        str(layer["runtimePrecision"].value)
        for layer in layers
        if layer["layerType"].value == "Convolution"
    ]
    integer = sum(kind in {"u8", "i8"} for kind in kinds)
    assert integer == portable.manifest.counts["Conv int8/static"] > 50
