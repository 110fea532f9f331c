"""Parts of graphs in torch: equal to onnxruntime, and cut at the given tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from tests.graphs import make_model, make_node
from tests.measures import snr_db
from tests.rules import make_recipe

torch = pytest.importorskip("torch")

from tts_compress.errors import QuantizationError  # noqa: E402
from tts_compress.models import load  # noqa: E402
from tts_compress.models.base import GraphModel  # noqa: E402
from tts_compress.numerics.ranges import choose_range  # noqa: E402
from tts_compress.onnx import integer  # noqa: E402
from tts_compress.onnx.graph import Graph  # noqa: E402
from tts_compress.onnx.noise import feed_noise  # noqa: E402
from tts_compress.onnx.quantize import operators  # noqa: E402
from tts_compress.onnx.quantize.collect import collect, record_tensors  # noqa: E402
from tts_compress.onnx.quantize.convert import Conversion, convert  # noqa: E402
from tts_compress.onnx.quantize.decisions import decide, static_outputs  # noqa: E402
from tts_compress.onnx.quantize.prepare import prepare  # noqa: E402
from tts_compress.onnx.rewrite import rewrite  # noqa: E402
from tts_compress.onnx.session import open_session  # noqa: E402
from tts_compress.qat.graph.network import (  # noqa: E402
    GraphNetwork,
    Subgraph,
    extract_subgraph,
    last_part,
    voice_subgraph,
)
from tts_compress.qat.graph.student import build_student, plan_rounding  # noqa: E402
from tts_compress.recipes.formats import Observer  # noqa: E402
from tts_compress.recipes.recipe import Calibration  # noqa: E402

if TYPE_CHECKING:
    from tts_compress.recipes.recipe import Format


_TEXT = "A quick test of the whole path."


def _graph() -> onnx.ModelProto:
    """Return y = conv(lrelu(conv(x) + s)) with a second reader of the first bias, and z = 2 s."""
    generator = np.random.default_rng(0)
    tensors = {
        "one.weight": generator.normal(size=(4, 2, 3)),
        "one.bias": generator.normal(size=4),
        "two.weight": generator.normal(size=(1, 4, 5)),
        "two": np.array(2.0),
    }
    nodes = [
        make_node("Conv", "x one.weight one.bias", "a", "/one/Conv", pads=[1, 1]),
        make_node("Add", "a s", "b", "/Add"),
        make_node("LeakyRelu", "b", "c", "/LeakyRelu"),
        make_node("Conv", "c two.weight", "y", "/two/Conv", pads=[2, 2]),
        make_node("Mul", "s two", "z", "/Mul"),
        make_node("Unsqueeze", "one.bias axis", "w", "/Unsqueeze"),
    ]
    return make_model(
        nodes,
        {"x": ["b", 2, "t"], "s": ["b", 4, 1]},
        dict.fromkeys(("y", "z", "w"), None),
        tensors | {"axis": np.array([0])},
        opset=17,
    )


def _values(*shape: int) -> Any:
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def test_whole_graph_computes_the_same(run_part: Callable[..., list[Any]]) -> None:
    feeds = {"x": _values(2, 2, 9), "s": _values(2, 4, 1)}
    expected = run_part(_graph(), feeds, ["y", "z", "w"])
    network = GraphNetwork(_whole(_graph()))
    made = network(*(torch.from_numpy(feeds[name]) for name in network.inputs))
    for found, wanted in zip(made, expected, strict=True):
        np.testing.assert_allclose(found.detach().numpy(), wanted, atol=1e-5)


def test_part_holds_what_its_outputs_need_and_nothing_more() -> None:
    part = extract_subgraph(_graph(), ["b"], ["y"])
    assert [node.op_type for node in part.model.graph.node] == ["LeakyRelu", "Conv"]
    assert {tensor.name for tensor in part.model.graph.initializer} == {"two.weight"}
    assert part.inputs == ["b"]


def test_trained_constants_are_those_that_nobody_else_reads() -> None:
    network = GraphNetwork(_whole(_graph(), "y"))
    names = ("one.weight", "one.bias", "two.weight", "two")
    assert [name for name in names if network.trained(name) is not None] == [names[0], names[2]]
    assert len(list(network.parameters())) == 2
    whole = GraphNetwork(_whole(_graph()))
    assert [name for name in names if whole.trained(name) is not None] == [*names[:3]]


@pytest.mark.parametrize(
    ("inputs", "outputs", "problem"),
    [
        (["x"], ["y"], "also depends on s; name"),
        (["b"], ["nowhere"], "also depends on nowhere; name"),
    ],
)
def test_cut_that_cannot_be_is_refused(inputs: list[str], outputs: list[str], problem: str) -> None:
    with pytest.raises(QuantizationError, match=problem):
        extract_subgraph(_graph(), inputs, outputs)


def test_copy_shares_nothing_and_state_goes_from_one_to_another() -> None:
    network = GraphNetwork(_whole(_graph(), "y"))
    other = copy.deepcopy(network)
    x, s = torch.from_numpy(_values(1, 2, 9)), torch.zeros(1, 4, 1)
    with torch.no_grad():
        before = network(x, s)[0]
        for parameter in other.parameters():
            parameter.mul_(2)
        assert torch.equal(network(x, s)[0], before)
        assert not torch.allclose(other(x, s)[0], before)
        other.load_state_dict(network.state_dict())
        assert torch.equal(other(x, s)[0], before)


def _voice_part(model: GraphModel) -> tuple[Subgraph, onnx.ModelProto]:
    graph = prepare(model.graph())
    rewrite(Graph(graph))
    return voice_subgraph(graph)[0], graph


def test_voice_from_prior_to_audio_computes_the_same(tiny: GraphModel) -> None:
    part, graph = _voice_part(tiny)
    tensors = [*part.inputs, *part.outputs]
    (call,) = record_tensors(graph, tensors, list(tiny.calibration_calls([_TEXT], seed=3))[:1])
    network = GraphNetwork(part)
    with torch.no_grad():
        made = network(*(torch.from_numpy(call[name]) for name in part.inputs))
    assert call[part.outputs[1]].std() > 1e-3
    for found, name in zip(made, part.outputs, strict=True):
        np.testing.assert_allclose(found.numpy(), call[name], atol=1e-4)


@pytest.mark.slow
def test_everything_a_text_needs_computes_the_same(tiny: GraphModel) -> None:
    """Encoder, splines and durations included, from phonemes to audio."""
    graph = feed_noise(prepare(tiny.graph()))
    (feeds, *_) = tiny.calibration_calls([_TEXT], seed=3)
    (call,) = record_tensors(tiny.graph(), ["output"], [feeds])
    network = GraphNetwork(_whole(graph))
    with torch.no_grad():
        (audio,) = network(*(torch.from_numpy(np.array(feeds[n])) for n in network.inputs))
    np.testing.assert_allclose(audio.numpy(), call["output"], atol=1e-4)


@pytest.mark.slow
def test_several_utterances_at_once_are_each_as_alone(demo: Path) -> None:
    voice: Any = load(demo)
    part, graph = _voice_part(voice)
    assert len(part.inputs) == 1
    calls = list(voice.calibration_calls([_TEXT], seed=3))[:1]
    (call,) = record_tensors(graph, [part.inputs[0]], calls)
    prior = torch.from_numpy(call[part.inputs[0]])
    x = torch.cat([prior[..., start : start + 20] for start in (0, 20, 40)])
    network = GraphNetwork(part)
    with torch.no_grad():
        together = network(x)
        for i in range(3):
            for found, alone in zip(together, network(x[i : i + 1]), strict=True):
                assert torch.allclose(found[i : i + 1], alone, atol=1e-5)


@pytest.mark.slow
def test_voice_of_several_speakers_is_told_which(choir_path: Path) -> None:
    voice: Any = load(choir_path)
    part, graph = _voice_part(voice)
    assert part.inputs[1:] == ["sid"]
    (call,) = voice.calibration_calls([_TEXT], seed=3)
    network = GraphNetwork(part)
    for speaker in (0, 2):
        feeds = call | {"sid": np.array([speaker], np.int64)}
        (seen,) = record_tensors(graph, [part.inputs[0], part.outputs[1]], [feeds])
        with torch.no_grad():
            _, audio = network(torch.from_numpy(seen[part.inputs[0]]), torch.tensor([speaker]))
        np.testing.assert_allclose(audio.numpy(), seen[part.outputs[1]], atol=1e-4)


def _whole(model: onnx.ModelProto, *outputs: str) -> Subgraph:
    """Return everything that some outputs depend on, by default all."""
    names = [output.name for output in model.graph.output]
    return last_part(model, lambda _: True, outputs or names)


_CALIBRATION = Calibration(observer=Observer.MINMAX)


def _signal(length: int) -> Any:
    return np.random.default_rng(length).normal(size=(2, 8, length)).astype(np.float32)


def _conversion(
    graph: onnx.ModelProto,
    rules: list[dict[str, Any]],
    form: Format,
) -> Conversion:
    graph = prepare(graph)
    recipe = make_recipe(*rules, format=form)
    decisions = decide(graph, recipe)
    if form == "qoperator":
        wanted = integer.observed_tensors(graph, static_outputs(decisions))
    else:
        wanted = operators.observed_tensors(graph, decisions)
    seen, _ = collect(graph, wanted, [], [{"x": _signal(64)}])
    ranges = {name: choose_range(seen[name], _CALIBRATION) for name in wanted}
    return Conversion(graph=graph, decisions=tuple(decisions), ranges=ranges, form=form)


def _answers(conversion: Conversion, signal: Any) -> tuple[Any, Any, Any]:
    """Return the outputs of the original, the finished graph and the network in torch."""
    sessions = (open_session(model, "x", 1) for model in (conversion.graph, convert(conversion)))
    real, finished = (session.run(None, {"x": signal})[0] for session in sessions)
    network = build_student(conversion, _whole(conversion.graph), calibration=_CALIBRATION)
    with torch.no_grad():
        (trained,) = network(torch.from_numpy(signal))
    return real, finished, trained.numpy()


_STATIC: dict[str, Any] = {"activations": "static"}
_PAIRS = {"activations": "static", "operators": ("Conv", "LeakyRelu", "Add", "Relu")}


@pytest.mark.parametrize("length", [33, 64])
@pytest.mark.parametrize(
    ("rules", "form"),
    [
        ([_STATIC, {}], "qoperator"),
        ([{**_STATIC, "match": "net.*", "exclude": ("net.one", "net.post")}, {}], "qoperator"),
        ([_PAIRS, {}], "qdq"),
        ([{"activations": "dynamic"}, {}], "qdq"),
        ([{}], "qdq"),
        ([{"weights": "float16"}, {}], "qdq"),
    ],
    ids=str,
)
def test_torch_rounds_as_the_finished_graph(
    rules: list[dict[str, Any]], form: Format, length: int, vocoder: onnx.ModelProto
) -> None:
    if rules[0].get("weights") == "float16":
        rules = [{"match": "net.one", "weights": "float16"}, {}]
    conversion = _conversion(vocoder, rules, form)
    real, finished, trained = _answers(conversion, _signal(length))
    rounding = snr_db(real, finished)
    assert rounding < 60  # there is rounding to agree about
    assert snr_db(finished, trained) > max(40, rounding + 10)


def test_part_that_begins_at_a_sum_is_rounded_behind_it(vocoder: onnx.ModelProto) -> None:
    conversion = _conversion(vocoder, [_STATIC], "qoperator")
    part = extract_subgraph(conversion.graph, ["mean"], ["wide.a"])
    network = build_student(conversion, part, calibration=_CALIBRATION)
    values = torch.from_numpy(_signal(16)).repeat(1, 2, 1)
    with torch.no_grad():
        (codes,) = network(values)
    assert len(codes.unique()) <= 256


def test_every_observed_range_is_trained(vocoder: onnx.ModelProto) -> None:
    conversion = _conversion(vocoder, [_STATIC], "qoperator")
    shares = plan_rounding(conversion).shares.values()
    assert {share.tensor for group in shares for share in group} >= {
        *("x", "pre", "up", "sum", "two", "total", "wide.a", "gate", "value", "gated", "parts")
    }


def test_part_without_integers_is_refused(vocoder: onnx.ModelProto) -> None:
    conversion = _conversion(vocoder, [{"match": "net.post"}], "qdq")
    part = _whole(conversion.graph, "joined")
    with pytest.raises(QuantizationError, match="no weight of the part that is trained is rounded"):
        build_student(conversion, part, calibration=_CALIBRATION)


def test_half_precision_arithmetic_is_refused(vocoder: onnx.ModelProto) -> None:
    conversion = _conversion(vocoder, [{"weights": "float16", "activations": "float16"}], "qdq")
    with pytest.raises(QuantizationError, match=r"module 'net\.pre' computes in float16"):
        build_student(conversion, _whole(conversion.graph), calibration=_CALIBRATION)
