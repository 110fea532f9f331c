"""Sensitivity of a tiny voice: what is measured, what is kept, what the page shows."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graphs import make_model, make_node, run_model
from tests.rules import make_recipe
from tts_compress.compression import compress
from tts_compress.compression.workbench import Workbench
from tts_compress.errors import ModelError, RecipeError
from tts_compress.models.base import GraphModel
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.quantize.convert import Conversion, convert, count_operators
from tts_compress.onnx.quantize.decisions import Decision, decide
from tts_compress.recipes.recipe import Rule, find_recipe
from tts_compress.search.measure import Damage, Estimator, GraphComparison, MeasuredDamage, rounded
from tts_compress.search.options import SearchOptions, SensitivityOptions
from tts_compress.search.outcome import write_result
from tts_compress.search.search import search
from tts_compress.search.sensitivity import Experiment, Trial, find_sensitivity, worth_measuring

_TEXTS = ("Good evening to you.", "My tooth hurts.")


@pytest.fixture(scope="module")
def bench(tiny: GraphModel, quick_recipe: Callable[[str], Path]) -> Workbench:
    recipe = find_recipe("piper", "int8", quick_recipe("int8"))
    return Workbench(tiny, recipe)


@pytest.fixture(scope="module")
def comparison(tiny: GraphModel, bench: Workbench) -> GraphComparison:
    return GraphComparison(tiny, bench.base("qoperator"), _TEXTS)


def _only(bench: Workbench, pattern: str, **keys: Any) -> Any:
    rule = Rule.model_validate({"match": pattern, **keys}, strict=False)
    return bench.recipe.model_copy(update={"component": (rule,)})


def test_the_whole_graph_is_serialized_once() -> None:
    serialized = list[int]()

    def serialize() -> bytes:
        serialized.append(1)
        return bytes(1000)

    experiment: Any = object.__new__(Experiment)
    experiment._base = SimpleNamespace(SerializeToString=serialize)
    group = SimpleNamespace(name="dec", component="decoder", patterns=("dec.*",))
    trial = SimpleNamespace(
        group=group, format=SimpleNamespace(name="int8"), spared_bytes=7, decisions=()
    )
    damage = MeasuredDamage(
        same_noise=0.0, duration_frames=0.0, distortion=0.0, floor_db=0.0, moment=0.0
    )
    times = SimpleNamespace(saved_ms=lambda *_: 0.0)
    sizes = [None, 300, 400]
    rows = [
        experiment._row(trial, damage, None if size is None else (damage, size), times)
        for size in sizes
    ]
    assert [row.saved_bytes for row in rows] == [7, 700, 600]
    assert len(serialized) == 1


@pytest.mark.slow
def test_nothing_changed_is_no_damage(bench: Workbench, comparison: GraphComparison) -> None:
    damage = comparison.measure(bench.base("qoperator"))
    assert (damage.same_noise, damage.duration_frames) == (0.0, 0.0)


@pytest.mark.slow
def test_durations_are_held_and_their_change_is_told(
    bench: Workbench, comparison: GraphComparison
) -> None:
    made = bench.convert(_only(bench, "dp.*", weights="int8"))
    damage = comparison.measure(made)
    assert damage.same_noise < 1e-4  # the decoder's FP32 kernels are others
    assert damage.duration_frames > 0.0
    louder = comparison.measure(bench.convert(_only(bench, "dec.*", weights="int8")))
    assert louder.same_noise > 0.0
    assert louder.duration_frames == 0.0


@pytest.mark.slow
def test_what_is_converted_again_is_what_compress_makes(bench: Workbench, tiny: GraphModel) -> None:
    """In integers, and in four bits that are chosen."""
    rule = Rule.model_validate(
        {"match": "flow.*", "weights": "int4", "group_size": 16, "algorithm": "gptq"}, strict=False
    )
    static = bench.recipe.component
    recipe = bench.recipe.model_copy(update={"component": (rule, *static)})
    small = compress(tiny, recipe=recipe, quality="fast")
    assert isinstance(small, GraphModel)
    bench.convert(bench.recipe)
    made = bench.convert(recipe)
    assert any(".int4" in tensor.name for tensor in made.graph.initializer)
    assert count_operators(made) == count_operators(small.graph())


def test_noise_of_rounding_is_estimated_as_it_is(
    bench: Workbench, comparison: GraphComparison
) -> None:
    """Round one convolution's weights and compare what it returns with the formula."""
    layers = bench.decisions(_only(bench, "dec.conv_pre", weights="int8"))
    (chosen,) = [layer for layer in layers if layer.weights == "int8"]
    base = bench.base("qoperator")
    estimator = Estimator(base, [chosen], comparison)
    node = Graph(base).producer(chosen.output)
    assert node is not None
    found = estimator.moments[chosen.output]
    weight = Graph(base).value(chosen.tensor).astype(np.float64)
    scales = np.abs(weight).max(axis=(1, 2), keepdims=True) / 127
    error = np.round(weight / scales) * scales - weight
    power = (np.square(error).sum(axis=2) @ found.inputs).mean()
    assert estimator.noise(chosen) == pytest.approx(np.sqrt(power / found.output), rel=1e-3)
    assert estimator.probes[chosen.output].same_noise > 0.0


_KINDS = ("Conv", "MatMul", "Conv")


def _trial(form: Any, *decisions: Decision) -> Trial:
    nothing: Any = None
    return Trial(group=nothing, format=form, recipe=nothing, decisions=decisions)


@pytest.mark.parametrize(("kind", "share"), [("int16", 0.5), ("int12", 0.375), ("int8", 0.25)])
def test_every_format_saves_bytes_and_does_damage(kind: str, share: float) -> None:
    """Weights of 16 and 12 bits saved nothing, and none were measured."""
    weight = np.random.default_rng(0).normal(size=(3, 8, 1)).astype(np.float32)
    node = make_node("Conv", "x w", "y", "/a/Conv")
    model = make_model([node], {"x": [1, 8, 8]}, {"y": None}, {"w": weight})
    decisions = tuple(decide(model, make_recipe({"weights": kind})))
    converted = convert(Conversion(graph=model, decisions=decisions, ranges={}))
    (held,) = run_model(converted, {"x": np.eye(8, dtype=np.float32)[None]})
    stored = rounded(weight.astype(np.float64), decisions[0])[:, :, 0]
    assert np.abs(stored - held[0]).max() < 1e-6 < np.abs(stored - weight[:, :, 0]).max()
    assert _trial(None, *decisions).spared_bytes == (1 - share) * weight.nbytes


def test_layers_without_an_estimate_are_measured() -> None:
    """They were taken for harmless."""
    weights = {name: np.ones((3, 8, 8), np.float32) for name in "abc"}
    layers = [(kind, f"x {name}", name + "_out") for kind, name in zip(_KINDS, "abc", strict=True)]
    nodes = [make_node(*layer) for layer in layers]
    ends = [make_node("Neg", f"{name}_out", f"{name}_end") for name in "abc"]
    outputs = {f"{name}_end": None for name in "abc"}
    model = make_model([*nodes, *ends], {"x": [3, 8, 8]}, outputs, weights)
    form = SimpleNamespace(name="int8")
    trials = [_trial(form, d) for d in decide(model, make_recipe({"weights": "int8"}))]
    estimates = [Damage(same_noise=sound, duration_frames=0.0) for sound in (0.0, 0.0, 1.0)]
    kept = worth_measuring(trials, dict(zip(trials, estimates, strict=True)), Graph(model))
    assert kept == [trials[1], trials[2]], "a stack of matrices has none"


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_interrupted(
    tiny: GraphModel,
    quick_recipe: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = SensitivityOptions(
        formats=("int8", "int8 static"),
        groups=("dec.*", "flow.*", "enc_p.*", "dp.*"),
        recipe=quick_recipe("int8"),
        texts=1,
        everything=True,
    )
    measured: list[bool] = []
    real = GraphComparison.measure

    def measure(self: GraphComparison, *arguments: Any, **keywords: Any) -> Any:
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(True)
        return real(self, *arguments, **keywords)

    monkeypatch.setattr(GraphComparison, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        find_sensitivity(tiny, tmp_path, options)
    monkeypatch.setattr(GraphComparison, "measure", real)
    found = find_sensitivity(tiny, tmp_path, options)
    kept = len(list((tmp_path / "measurements").glob("*.json")))
    assert len(found.rows) == 8
    assert kept == 17  # an estimate and a measurement of each, and the times
    assert found.rows[0].damage.same_noise >= found.rows[-1].damage.same_noise
    by_name = {(row.group, row.format): row for row in found.rows}
    assert by_name["dec.*", "int8"].saved_bytes > 0
    assert by_name["dp.*", "int8"].damage.same_noise < 1e-4

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("measured again")

    monkeypatch.setattr(GraphComparison, "measure", refuse)
    again = find_sensitivity(tiny, tmp_path, options)
    assert again.rows == found.rows

    pytest.importorskip("jinja2")
    page = write_result(found, tmp_path).read_text("utf-8")
    assert "<h3>dec</h3>" in page
    assert "http" not in page.split("</style>")[1]
    assert (tmp_path / "sensitivity.json").is_file()


@pytest.mark.slow
def test_a_voice_that_speaks_no_numbers_is_refused(tiny_path: Path, tmp_path: Path) -> None:
    """Every layer of it did no damage: nothing differs from what is no number."""
    graph = onnx.load(tiny_path)
    sound = graph.graph.output[0].name
    last = next(node for node in graph.graph.node if sound in node.output)
    last.output[:] = ["spoken"]
    graph.graph.node.extend(
        [
            make_node("Sub", "spoken spoken", "nothing"),
            make_node("Div", "nothing nothing", sound),
        ]
    )
    onnx.save(graph, tmp_path / "tiny.onnx")
    shutil.copy(f"{tiny_path}.json", tmp_path / "tiny.onnx.json")
    options = SensitivityOptions(texts=1, formats=("int8",))
    with pytest.raises(ModelError, match="speaks samples that are not finite"):
        find_sensitivity(tmp_path / "tiny.onnx", tmp_path / "found", options)


def test_compressed_voices_are_refused(compressed: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="already compressed"):
        find_sensitivity(str(compressed("int8-weight-only")), tmp_path)


def test_an_unknown_format_is_refused_before_the_graph_is_prepared(
    tiny: GraphModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workbench, "base", lambda *_: pytest.fail("the graph was prepared"))
    with pytest.raises(RecipeError, match="no format 'int7' for family 'piper'"):
        find_sensitivity(tiny, tmp_path, SensitivityOptions(formats=("int7",), texts=1))


def test_codes_of_16_bits_are_refused(
    tiny: GraphModel, quick_recipe: Callable[[str], Path], tmp_path: Path
) -> None:
    """They are computed in FP32 here, and estimated as those of 8 bits."""
    recipe = tmp_path / "wide.toml"
    text = quick_recipe("int8").read_text(encoding="utf-8")
    recipe.write_text(re.sub(r"(?m)^format = .*$", 'format = "qdq16"', text), encoding="utf-8")
    options = SensitivityOptions(recipe=recipe, texts=1)
    with pytest.raises(RecipeError, match="format 'qdq16' is for NPUs"):
        find_sensitivity(tiny, tmp_path, options)
    pytest.importorskip("optuna")
    with pytest.raises(RecipeError, match="give a recipe of format 'qdq'"):
        search(tiny, tmp_path, SearchOptions(sensitivity=options))
