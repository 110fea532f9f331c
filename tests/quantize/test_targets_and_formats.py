"""Targets and graph formats of a whole voice: what is asked for is what the file holds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from tts_compress import Recipe, find_recipe
from tts_compress.cli import main
from tts_compress.errors import RecipeError
from tts_compress.models import load
from tts_compress.models.base import GraphModel
from tts_compress.quantize import compress
from tts_compress.quantize.onnx.count import count_fused, count_operators
from tts_compress.targets import find_target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TEXT = "Please call Stella."


@pytest.fixture(scope="module")
def changed(tiny: GraphModel, quick_recipe: Callable[[str], Path]) -> Callable[..., GraphModel]:
    """Return what compresses the tiny voice by a shipped recipe with other keys."""

    def make(scheme: str = "int8", **keys: Any) -> GraphModel:
        recipe = find_recipe("piper", scheme, quick_recipe(scheme)).model_copy(update=keys)
        small = compress(tiny, scheme, recipe=recipe)
        assert isinstance(small, GraphModel)
        return small

    return make


def _codes(graph: onnx.ModelProto) -> set[str]:
    """Return the types of the zero points of everything quantized at run time."""
    tensors = {tensor.name: tensor for tensor in graph.graph.initializer}
    zeros = [n.input[2] for n in graph.graph.node if n.op_type == "QuantizeLinear"]
    return {onnx.TensorProto.DataType.Name(tensors[zero].data_type) for zero in zeros}


def _largest_weight(graph: onnx.ModelProto) -> int:
    """Return the largest code of the weights that integer convolutions multiply with."""
    tensors = {tensor.name: tensor for tensor in graph.graph.initializer}
    names = [n.input[3] for n in graph.graph.node if n.op_type == "QLinearConv"]
    arrays = [onnx.numpy_helper.to_array(tensors[name]).astype(int) for name in names]
    return max(int(np.abs(array).max()) for array in arrays)


def _check_sound(
    small: GraphModel, tiny: GraphModel, snr_db: Callable[..., float], least: float
) -> None:
    audio, wanted = (voice.synthesize(_TEXT, seed=0) for voice in (small, tiny))
    assert audio.durations is not None
    assert wanted.durations is not None
    assert np.mean(audio.durations == wanted.durations) > 0.9
    if len(audio.samples) == len(wanted.samples):
        assert snr_db(wanted.samples, audio.samples) > least


@pytest.mark.parametrize(
    ("target", "codes", "largest"),
    [("x86-vnni", "UINT8", 127), ("x86", "UINT8", 63), ("arm64", "INT8", 127)],
)
def test_codes_and_weights_are_those_of_the_target(
    changed: Callable[..., GraphModel],
    tiny: GraphModel,
    snr_db: Callable[..., float],
    target: str,
    codes: str,
    largest: int,
) -> None:
    small = changed(target=target)
    assert _codes(small.graph()) == {codes}
    assert _largest_weight(small.graph()) == largest
    assert small.manifest is not None
    assert small.manifest.recipe["target"] == target
    assert small.manifest.target == find_target(target).model_dump(mode="json")
    _check_sound(small, tiny, snr_db, 13)


def test_manifest_survives_the_artifact(changed: Callable[..., GraphModel], tmp_path: Path) -> None:
    saved = load(changed(target="arm64").save(tmp_path / "small"))
    assert saved.manifest is not None
    assert saved.manifest.target == find_target("arm64").model_dump(mode="json")


def test_target_of_a_scheme_without_integers_is_not_recorded(
    changed: Callable[..., GraphModel],
) -> None:
    manifest = changed("bf16").manifest
    assert manifest is not None
    assert manifest.target is None


def test_dynamic_products_have_the_targets_weights(changed: Callable[..., GraphModel]) -> None:
    """Products of u8 and s8 saturate without VNNI, those of u8 and u8 (convolutions) do not."""

    def largest(target: str) -> int:
        graph = changed("int8-dynamic", target=target).graph()
        tensors = {tensor.name: tensor for tensor in graph.graph.initializer}
        names = [n.input[1] for n in graph.graph.node if n.op_type == "MatMulInteger"]
        found = [onnx.numpy_helper.to_array(tensors[n]) for n in names if n in tensors]
        return max((int(np.abs(array).max()) for array in found), default=0)

    assert (largest("x86"), largest("x86-vnni")) in {(63, 127), (0, 0)}


@pytest.mark.parametrize("target", ["x86-vnni", "arm64"])
def test_portable_form_holds_standard_operators_only(
    changed: Callable[..., GraphModel],
    tiny: GraphModel,
    snr_db: Callable[..., float],
    target: str,
) -> None:
    small = changed(format="qdq", target=target)
    graph, manifest = small.graph(), small.manifest
    assert manifest is not None
    assert {node.domain for node in graph.graph.node} == {""}
    assert {opset.domain for opset in graph.opset_import} == {""}
    onnx.checker.check_model(graph, full_check=True)
    assert manifest.recipe["format"] == "qdq"
    assert manifest.counts == count_operators(graph)
    fused = count_fused(graph, signed=target == "arm64")
    assert fused == manifest.counts["Conv int8/static"] > 30
    assert manifest.target is not None
    assert "choices" not in manifest.target  # the runtime chooses its kernels itself
    _check_sound(small, tiny, snr_db, 15)


def test_both_forms_honour_the_recipe(changed: Callable[..., GraphModel]) -> None:
    """Durations and layers too narrow for the recipe stay real, whatever the form."""
    for form in ("qdq", "qoperator"):
        manifest = changed(format=form).manifest
        assert manifest is not None
        static = [la for la in manifest.layers if la.activations == "static"]
        parts = {layer.module.split(".")[0] for layer in static}
        assert "flow" in parts
        assert "dp" not in parts
        # The tiny voice's decoder has 32 channels at most, its stages half and a quarter of that.
        assert not [la.module for la in static if la.module.startswith("dec.resblocks")]


def test_fused_form_of_the_portable_scheme(
    changed: Callable[..., GraphModel], tiny: GraphModel, snr_db: Callable[..., float]
) -> None:
    small = changed("int8-static", format="qoperator")
    assert small.manifest is not None
    assert small.manifest.counts["Conv int8/static"] > 60
    assert "QLinearConv" in {node.op_type for node in small.graph().graph.node}
    _check_sound(small, tiny, snr_db, 13)


def test_own_target_is_recorded_by_its_name(
    changed: Callable[..., GraphModel], tmp_path: Path
) -> None:
    own = tmp_path / "file.toml"
    own.write_text(
        'version = 1\nname = "mine"\nsummary = "test"\nactivations = "uint8"\nweight_bits = 7\n'
        'reason = "test"\nmeasured = false\nassumption = "none"\n[choices]\ngates = "real"\n'
    )
    small = changed(target=str(own))
    assert small.manifest is not None
    assert small.manifest.recipe["target"] == "mine"  # the file's place is nobody's business
    assert small.manifest.target is not None
    assert small.manifest.target["choices"]["gates"] == "real"
    usual = changed(target="x86")
    for voice, expected in ((usual, True), (small, False)):
        types = {node.op_type for node in voice.graph().graph.node}
        assert ("QLinearSigmoid" in types) == expected
    assert _largest_weight(small.graph()) == 63


def test_recipe_of_another_scheme_and_unknown_target_are_refused(tiny: GraphModel) -> None:
    shipped = find_recipe("piper", "int8")
    assert isinstance(shipped, Recipe)
    with pytest.raises(RecipeError, match="is for scheme 'int8', not 'fp16'"):
        compress(tiny, "fp16", recipe=shipped)
    with pytest.raises(RecipeError, match="no targets named 'z80'"):
        compress(tiny, "int8", recipe=shipped.model_copy(update={"target": "z80"}))


def test_command_line(
    tiny_path: Path,
    quick_recipe: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["quantize", str(tiny_path), "--recipe", str(quick_recipe("int8"))]
    arguments += ["--output", str(tmp_path / "small")]
    assert main([*arguments, "--target", "arm64", "--format", "qdq", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "arm64"
    manifest = json.loads((tmp_path / "small" / "manifest.json").read_text("utf-8"))
    assert (manifest["recipe"]["target"], manifest["recipe"]["format"]) == ("arm64", "qdq")
    assert main([*arguments, "--force", "--target", "z80"]) == 2
    assert "no targets named 'z80'" in capsys.readouterr().err
    weights = ["quantize", str(tiny_path), "--scheme", "fp16", "--output", str(tmp_path / "half")]
    assert main([*weights, "--format", "qoperator"]) == 2
    assert "leave the format out" in capsys.readouterr().err
