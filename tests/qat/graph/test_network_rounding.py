"""Training rounds as deployment does: the graph in torch against the integer graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from tests.measures import snr_db
from tests.rules import make_recipe

torch = pytest.importorskip("torch")

from tts_compress.errors import QuantizationError  # noqa: E402
from tts_compress.numerics.ranges import choose_range  # noqa: E402
from tts_compress.onnx import integer  # noqa: E402
from tts_compress.onnx.quantize import operators  # noqa: E402
from tts_compress.onnx.quantize.collect import collect  # noqa: E402
from tts_compress.onnx.quantize.convert import Conversion, convert  # noqa: E402
from tts_compress.onnx.quantize.decisions import decide, static_outputs  # noqa: E402
from tts_compress.onnx.quantize.prepare import prepare  # noqa: E402
from tts_compress.onnx.session import open_session  # noqa: E402
from tts_compress.qat.graph.network import (  # noqa: E402
    Subgraph,
    extract_subgraph,
    last_part,
)
from tts_compress.qat.graph.student import (  # noqa: E402
    build_student,
    plan_rounding,
)
from tts_compress.recipes.formats import Observer  # noqa: E402
from tts_compress.recipes.recipe import Calibration  # noqa: E402

if TYPE_CHECKING:
    from tts_compress.recipes.recipe import Format


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
    seen = collect(graph, wanted, [{"x": _signal(64)}])
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


def _whole(model: onnx.ModelProto, *outputs: str) -> Subgraph:
    """Return everything that some outputs depend on, by default all."""
    names = [output.name for output in model.graph.output]
    return last_part(model, lambda _: True, outputs or names)
