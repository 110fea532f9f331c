"""Voices in fixed sizes say what the voice says at every length; what cannot be fixed is named."""

from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.export.simulators import open_in_qnn, open_in_rknn
from tests.measures import snr_db
from tests.models.contract.conftest import make_matcha  # noqa: F401 -- a fixture
from tts_compress import find_recipe
from tts_compress.compression import compress
from tts_compress.errors import ModelError
from tts_compress.export.fixed import export_fixed
from tts_compress.inspection.check import check_runtime
from tts_compress.models import load, open_model
from tts_compress.models.streaming import prepare_part
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.receptive import observe_shapes, walk
from tts_compress.onnx.stages import single_stage
from tts_compress.recipes.formats import Weights
from tts_compress.recipes.recipe import Rule

_SOUND = Path("fixed", "sound-64.onnx")
_TEXTS = ("Hi.", "The quick brown fox jumps over the lazy dog, and then it runs away.")


_PLAYER: Any = run_path(str(Path(__file__).parents[2] / "examples" / "fixed" / "play.py"))["Player"]


def _said(player: Any, voice: Any, text: str) -> Any:
    """Return a text's sound without noise."""
    call = next(voice.calibration_calls([text], seed=0))
    scales = [0.0, float(call["scales"][1]), 0.0]
    return player.speak(call["input"][0].tolist(), scales=scales)


@pytest.fixture(scope="module")
def small(compressed: Callable[[str], Path]) -> Any:
    """Return the tiny voice in standard operators for INT8."""
    voice: Any = load(compressed("int8-static"))
    assert voice.manifest.recipe["format"] == "qdq"
    return voice


@pytest.fixture(scope="module")
def finer(choir_path: Path, quick_recipe: Callable[[str], Path]) -> Any:
    """Return a voice of several speakers with activations in 16 bits."""
    recipe = find_recipe("piper", "int8", quick_recipe("int8"))
    return compress(load(choir_path), "int8", recipe=recipe.model_copy(update={"format": "qdq16"}))


@pytest.fixture(params=["choir_path", "small", "finer"])
def voice(request: pytest.FixtureRequest) -> Any:
    value = request.getfixturevalue(request.param)
    return load(value) if isinstance(value, Path) else value


@pytest.mark.slow
def test_a_text_of_any_length_is_that_of_the_voice(voice: Any, tmp_path: Path) -> None:
    """In the smallest graph that holds it, or in windows of the largest."""
    export_fixed(voice, tmp_path / "out", [100, 24])
    player = _PLAYER(tmp_path / "out")
    assert [graph["frames"] for graph in player.graphs] == [24, 100]
    for text in _TEXTS:
        whole = voice.synthesize(text, seed=None).samples
        sound = _said(player, voice, text)
        assert len(sound) == len(whole)
        assert np.abs(sound - whole).max() < 1e-5


@pytest.fixture(scope="module")
def exported(
    tiny: Any, small: Any, finer: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Return the folders of the voices `tiny`, `small` and `finer` in 64 frames."""
    folder = tmp_path_factory.mktemp("fixed")
    for name, voice in (("tiny", tiny), ("small", small), ("finer", finer)):
        export_fixed(voice, folder / name, [64])
    return {name: folder / name for name in ("tiny", "small", "finer")}


@pytest.mark.slow
def test_every_number_of_frames_is_exact(tiny: Any, exported: dict[str, Path]) -> None:
    """Within a window, at its ends, and over several."""
    player = _PLAYER(exported["tiny"])
    calls = tiny.two_calls("")
    model, inputs, outputs = prepare_part(tiny.parts[""], tiny.graph(), calls, original=True)
    field = walk(Graph(copy_model(model)), observe_shapes(model, inputs, "tiny"), outputs)
    _, stage, part = single_stage(model, field, "tiny")
    session = onnxruntime.InferenceSession(part.SerializeToString())
    shape = [*field.shape(stage.reads[0])]
    frames = (
        np.random.default_rng(0).standard_normal((*shape[: stage.axis], 130)).astype(np.float32)
    )
    for length in (1, 2, 3, 40, 62, 63, 64, 65, 66, 90, 127, 128, 129, 130):
        some = frames[..., :length]
        (whole,) = session.run(None, {stage.reads[0]: some})
        sound = player.sound({stage.reads[0]: some}, {})
        assert np.abs(sound - whole.reshape(-1)).max() < 1e-5, length


@pytest.mark.slow
@pytest.mark.parametrize("bits", ["small", "finer"])
def test_npus_take_it_by_their_documents(
    bits: str, exported: dict[str, Path], request: pytest.FixtureRequest
) -> None:
    voice = request.getfixturevalue(bits)
    graph = exported[bits] / _SOUND
    assert not check_runtime(voice, "qnn").plays, "its sizes are not fixed"
    verdicts = [check_runtime(open_model(f"onnx:{graph}"), name) for name in ("qnn", "coreml")]
    assert all(verdict.plays for verdict in verdicts)
    # Of sizes, which onnxruntime computes when it opens the graph: a speaker's zeros.
    sizes = {"ai.onnx.Shape", "ai.onnx.ConstantOfShape"} if bits == "finer" else set[str]()
    assert verdicts[0].on_fallback.keys() <= sizes
    masks = {value.type.tensor_type.elem_type for value in onnx.load(graph).graph.input}
    narrow = {onnx.TensorProto.UINT8} if bits == "small" else set[int]()
    assert masks == {onnx.TensorProto.FLOAT} | narrow


@pytest.mark.slow
def test_all_that_has_sixteen_bits_is_between_codes(exported: dict[str, Path]) -> None:
    """Sums, activations, upsampling, the last stage, and what a speaker adds."""
    graph = Graph(onnx.load(exported["finer"] / _SOUND))
    kinds = {"Add", "Concat", "Conv", "ConvTranspose", "Div", "LeakyRelu", "Mul", "Slice", "Tanh"}
    nodes = [node for node in graph.nodes if node.op_type in kinds]
    assert {node.op_type for node in nodes} == kinds
    for node in nodes:
        reads = map(graph.producer, node.input[: 1 if node.op_type == "Slice" else None])
        assert {maker and maker.op_type for maker in reads} == {"DequantizeLinear"}, node.name
        readers = {reader.op_type for name in node.output for reader in graph.readers(name)}
        assert readers == {"QuantizeLinear"}, node.name
    last = graph.producer(graph.outputs[0])
    assert last is not None
    assert last.op_type == "DequantizeLinear"


@pytest.mark.slow
def test_long_masks_are_not_broadcast(exported: dict[str, Path]) -> None:
    """RKNN-Toolkit2 2.5 broadcasts up to 8,192 steps; the sound has 16,384 samples."""
    model = onnx.load(exported["tiny"] / _SOUND)
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    products = [n for n in model.graph.node if n.op_type == "Mul" and "mask" in n.input[1]]
    long = [n for n in products if max(shapes[n.input[0]]) > 8192]
    assert long
    assert len(long) < len(products)
    assert all(shapes[n.input[0]] == shapes[n.input[1]] for n in long)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["tiny", "small"])
def test_rknn_converts_and_says_the_same(
    form: str,
    exported: dict[str, Path],
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """In Rockchip's own converter and simulator, which compute in FP16 and INT8."""
    voice = request.getfixturevalue(form)
    here, there = _PLAYER(exported[form]), _PLAYER(exported[form], open_in_rknn)
    snr = snr_db(_said(here, voice, "Hi."), _said(there, voice, "Hi."))
    assert snr > (40 if form == "tiny" else 20)
    said = capfd.readouterr()
    assert "exceeds the limit" not in said.out + said.err


@pytest.mark.slow
@pytest.mark.parametrize("form", ["tiny", "small", "finer"])
def test_qnn_leaves_nothing_to_the_processor(
    form: str, exported: dict[str, Path], request: pytest.FixtureRequest
) -> None:
    """In Qualcomm's compiler and simulator of its NPU."""
    voice = request.getfixturevalue(form)
    here, there = _PLAYER(exported[form]), _PLAYER(exported[form], open_in_qnn)
    assert snr_db(_said(here, voice, "Hi."), _said(there, voice, "Hi.")) > 20


@pytest.mark.slow
def test_weights_of_transposed_convolutions_are_real(exported: dict[str, Path]) -> None:
    """QNN's provider leaves their `DequantizeLinear` to the CPU."""
    graph = Graph(onnx.load(exported["small"] / _SOUND))
    weights = [n.input[1] for n in graph.nodes if n.op_type == "ConvTranspose"]
    assert weights
    assert all(name in graph.initializers for name in weights)


@pytest.mark.slow
def test_weights_of_four_bits_can_be_in_fixed_sizes(tiny: Any, tmp_path: Path) -> None:
    """Their codes are computed: nothing is known of them before the graph runs."""
    recipe = find_recipe("piper", "int4-weight-only")
    rule = Rule(match="dec.ups*", weights=Weights.INT4, group_size=16)
    rules = {"component": (rule, *recipe.component)}
    small: Any = compress(tiny, "int4-weight-only", recipe=recipe.model_copy(update=rules))
    assert "ConvTranspose int4/none" in small.manifest.counts
    export_fixed(small, tmp_path / "out", [64])
    said = _said(_PLAYER(tmp_path / "out"), small, "Hi.")
    assert np.isfinite(said).all()
    assert said.any()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["tiny", "small", "finer"])
def test_openvino_says_the_same(
    form: str, exported: dict[str, Path], request: pytest.FixtureRequest
) -> None:
    """In FP32, and in codes of 8 and 16 bits: its sums round differently where these tip."""
    voice = request.getfixturevalue(form)
    openvino = pytest.importorskip("openvino")

    def opened(path: Path) -> Any:
        exact = {"INFERENCE_PRECISION_HINT": "f32"}  # not bfloat16, where the processor has it
        compiled = openvino.Core().compile_model(str(path), "CPU", exact)
        assert not any(port.partial_shape.is_dynamic for port in compiled.inputs)
        return lambda feeds: compiled(feeds)[0]

    player = _PLAYER(exported[form], opened)
    whole = voice.synthesize(_TEXTS[1], seed=None).samples
    assert snr_db(whole, _said(player, voice, _TEXTS[1])) > (60 if form == "tiny" else 30)


@pytest.mark.slow
def test_what_cannot_be_fixed_is_named(
    tiny: Any,
    compressed: Callable[[str], Path],
    make_matcha: Callable[..., Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    codes: Any = load(compressed("int8"))
    with pytest.raises(ModelError, match=r"QLinear.*compress it with --format qdq"):
        export_fixed(codes, out, [64])
    with pytest.raises(ModelError, match=r"reads 54 frames around each.* is 55 or more"):
        export_fixed(tiny, out, [8, 54])
    with pytest.raises(ModelError, match="sizes are 1 to"):
        export_fixed(tiny, out, [0])
    voice: Any = load(make_matcha())
    with pytest.raises(ModelError, match="has several graphs"):
        export_fixed(voice, out, [64])
    assert not out.exists()


@pytest.mark.slow
def test_padding_by_values_is_refused(tiny: Any, tmp_path: Path) -> None:
    """It repeats what is before the end, which a mask cannot."""
    model = tiny.graph()
    last = model.graph.node[-1]
    pads = onnx.numpy_helper.from_array(np.array([0, 0, 1, 0, 0, 1], np.int64), "pads")
    model.graph.initializer.append(pads)
    pad = onnx.helper.make_node("Pad", [last.input[0], "pads"], ["padded"], "/dec/Pad", mode="edge")
    model.graph.node.insert(len(model.graph.node) - 1, pad)
    last.input[0] = "padded"
    path = tmp_path / "voice" / "tiny.onnx"
    tiny.save(path.parent)
    onnx.save(model, path)
    voice: Any = load(path)
    with pytest.raises(ModelError, match="Pad '/dec/Pad' reads behind the end"):
        export_fixed(voice, tmp_path / "out", [64])
