"""Graph formats of a whole voice: the file holds the requested format."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.measures import snr_db
from tts_compress import find_recipe
from tts_compress.cli import main
from tts_compress.compression import compress, compress_trained
from tts_compress.errors import SchemeError
from tts_compress.models import load
from tts_compress.models.base import GraphModel
from tts_compress.onnx.quantize.convert import count_fused, count_operators

_TEXT = "Please call Stella."


@pytest.fixture(scope="module")
def portable(
    tiny_path: Path, quick_recipe: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return the artifact of `int8` that the command makes in standard operators."""
    folder = tmp_path_factory.mktemp("portable") / "small"
    arguments = ["quantize", str(tiny_path), "--recipe", str(quick_recipe("int8"))]
    arguments += ["--output", str(folder), "--format", "qdq", "--no-time"]
    assert main(arguments) == 0
    return folder


def _load(folder: Path) -> GraphModel:
    voice = load(folder)
    assert isinstance(voice, GraphModel)
    return voice


def _codes(graph: onnx.ModelProto) -> set[str]:
    """Return the types of the zero points of everything quantized at run time."""
    tensors = {tensor.name: tensor for tensor in graph.graph.initializer}
    zeros = [n.input[2] for n in graph.graph.node if n.op_type == "QuantizeLinear"]
    return {onnx.TensorProto.DataType.Name(tensors[zero].data_type) for zero in zeros}


def _check_sound(small: GraphModel, tiny: GraphModel, least: float) -> None:
    audio, wanted = (voice.synthesize(_TEXT, seed=0) for voice in (small, tiny))
    assert audio.durations is not None
    assert wanted.durations is not None
    assert np.mean(audio.durations == wanted.durations) > 0.9
    if len(audio.samples) == len(wanted.samples):
        assert snr_db(wanted.samples, audio.samples) > least


@pytest.mark.slow
def test_portable_form_holds_standard_operators_only(portable: Path, tiny: GraphModel) -> None:
    small = _load(portable)
    graph, manifest = small.graph(), small.manifest
    assert manifest is not None
    assert {node.domain for node in graph.graph.node} == {""}
    assert {opset.domain for opset in graph.opset_import} == {""}
    onnx.checker.check_model(graph, full_check=True)
    assert manifest.recipe["format"] == "qdq"
    assert manifest.counts == count_operators(graph)
    fused = count_fused(graph)
    assert fused == manifest.counts["Conv int8/static"] > 15
    _check_sound(small, tiny, 15)


@pytest.mark.slow
def test_both_forms_honour_the_recipe(portable: Path, compressed: Callable[[str], Path]) -> None:
    """Durations and layers too narrow for the recipe stay real, whatever the form."""
    for form, folder in (("qdq", portable), ("qoperator", compressed("int8"))):
        manifest = _load(folder).manifest
        assert manifest is not None
        assert (manifest.scheme, manifest.recipe["format"]) == ("int8", form)
        static = [la for la in manifest.layers if la.activations == "static"]
        parts = {layer.module.split(".")[0] for layer in static}
        assert "flow" in parts
        assert "dp" not in parts
        # The tiny voice's decoder has 32 channels at most, its stages half and a quarter of that.
        assert not [la.module for la in static if la.module.startswith("dec.resblocks")]


@pytest.mark.slow
def test_activations_in_16_bits_are_finer(
    tiny: GraphModel, compressed: Callable[[str], Path], quick_recipe: Callable[[str], Path]
) -> None:
    """Weights alone are rounded; onnxruntime computes in FP32, and that is said."""
    scheme = "int8-static"
    recipe = find_recipe("piper", scheme, quick_recipe(scheme))
    wide = compress(tiny, scheme, recipe=recipe.model_copy(update={"format": "qdq16"}))
    forms: dict[str, Any] = {"qdq": load(compressed(scheme)), "qdq16": wide}
    wanted, distances = tiny.synthesize(_TEXT, seed=None), dict[str, float]()
    for form, small in forms.items():
        graph, counts = small.graph(), small.manifest.counts
        assert _codes(graph) == ({"UINT8"} if form == "qdq" else {"UINT16"})
        assert counts == count_operators(graph)
        assert counts["Conv int8/static"] > 15
        assert ("integers" in dict(small.manifest.run.arithmetic)) == (form == "qdq")
        distances[form] = snr_db(wanted.samples, small.synthesize(_TEXT, seed=None).samples)
    assert distances["qdq16"] > distances["qdq"] + 6


def test_16_bits_are_neither_trained_nor_chosen_by_speed(
    tiny: GraphModel, quick_recipe: Callable[[str], Path]
) -> None:
    recipe = find_recipe("piper", "int8", quick_recipe("int8"))
    wide = recipe.model_copy(update={"format": "qdq16"})
    with pytest.raises(SchemeError, match="format 'qdq16' is for NPUs"):
        compress(tiny, "int8", recipe=wide, quality="good")
    pytest.importorskip("accelerate")
    with pytest.raises(SchemeError, match="neither trained nor"):
        compress_trained(tiny, "int8", recipe=wide)


def test_weights_alone_have_no_format(
    tiny_path: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    weights = ["quantize", str(tiny_path), "--scheme", "fp16", "--output", str(tmp_path / "half")]
    for form in ("qoperator", "qdq16"):
        assert "leave the format out" in refused(*weights, "--format", form)
