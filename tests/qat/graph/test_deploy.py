"""Trained weights reach the artifact, by the same builder and with the same operators."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.measures import snr_db
from tests.onnx.conversion import make_calls
from tests.onnx.conversion import prepared as prepared_graph

torch = pytest.importorskip("torch")

from tts_compress.compression.workbench import open_calibration  # noqa: E402
from tts_compress.errors import QuantizationError  # noqa: E402
from tts_compress.onnx.quantize.collect import record_tensors  # noqa: E402
from tts_compress.onnx.quantize.convert import (  # noqa: E402
    Conversion,
    convert,
    prepare_conversion,
    with_chosen_codes,
)
from tts_compress.progress import Silent  # noqa: E402
from tts_compress.qat.fake_quantize import ActivationFakeQuantize  # noqa: E402
from tts_compress.qat.graph import task as graph_training  # noqa: E402
from tts_compress.qat.graph.network import last_part, voice_subgraph  # noqa: E402
from tts_compress.qat.graph.student import build_student, learned_conversion  # noqa: E402
from tts_compress.recipes.recipe import Recipe, find_recipe  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import onnx

    from tts_compress.models.base import GraphModel
    from tts_compress.qat.graph.network import GraphNetwork

    Prepared = tuple[Recipe, Conversion]


def _call(seed: int) -> dict[str, Any]:
    noise = np.random.default_rng(seed).normal(size=(1, 8, 60 + 10 * seed))
    return {"x": noise.astype(np.float32)}


_CALLS = make_calls(_call, count=3)


def _whole(recipe: Recipe) -> Recipe:
    """Return a recipe that leaves no layer out for its place or width."""
    every = {"skip_graph_inputs": False, "min_channels": 1}
    rules = tuple(rule.model_copy(update=every) for rule in recipe.component)
    return recipe.model_copy(update={"component": rules})


@pytest.fixture(scope="module")
def prepared(vocoder: onnx.ModelProto) -> Prepared:
    """Return the vocoder, prepared for training."""
    recipe = _whole(find_recipe("onnx", "int8-qat"))
    return recipe, prepared_graph(vocoder, recipe, _CALLS, batch_one=False)


@pytest.fixture
def student(prepared: Prepared) -> GraphNetwork:
    """Return the vocoder as post-training quantization rounds it."""
    recipe, conversion = prepared
    part = last_part(conversion.graph, lambda _: True, ["post"])
    assert recipe.calibration is not None
    return build_student(conversion, part, calibration=recipe.calibration)


def _change(student: GraphNetwork) -> None:
    """Do what training does, at random."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in student.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.1 * parameter.abs().mean() * noise)
    for module in student.modules():
        if isinstance(module, ActivationFakeQuantize):
            low, high = module.limits()
            module.set_limits((0.95 * low, 0.9 * high))


def _operators(model: onnx.ModelProto) -> Counter[tuple[str, tuple[Any, ...]]]:
    """Count the operators of a graph, each with the shapes of its constants."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    return Counter(
        (node.op_type, tuple(shapes.get(name) for name in node.input)) for node in model.graph.node
    )


def _check_unchanged(conversion: Conversion, student: GraphNetwork) -> None:
    before, after = convert(conversion), convert(learned_conversion(conversion, student))
    assert [n.SerializeToString() for n in before.graph.node] == [
        n.SerializeToString() for n in after.graph.node
    ]
    pairs = zip(before.graph.initializer, after.graph.initializer, strict=True)
    assert [one.name for one, other in pairs if one != other] == []


def test_student_that_learned_nothing_gives_the_post_training_graph(
    prepared: Prepared, student: GraphNetwork
) -> None:
    _check_unchanged(prepared[1], student)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["int8-qat", "int4-qat"])
def test_finished_voice_answers_as_the_student(
    tiny: GraphModel,
    quick_recipe: Callable[[str], Path],
    run_part: Callable[..., list[Any]],
    scheme: str,
) -> None:
    recipe = _whole(find_recipe("piper", scheme, quick_recipe(scheme)))
    assert recipe.calibration is not None
    calls, _ = open_calibration(tiny, recipe.calibration, None, seed=0)
    conversion = prepare_conversion(tiny.graph, recipe, calls, batch_one=True, progress=Silent())
    part, _ = voice_subgraph(conversion.graph)
    student = build_student(conversion, part, calibration=recipe.calibration)
    _check_unchanged(conversion, student)
    prior = student.inputs[0]
    (call,) = record_tensors(conversion.graph, [prior], [next(calls.feeds())])
    _change(student)
    changed = convert(learned_conversion(conversion, student))
    latent, audio = run_part(changed, call, student.outputs)
    before = run_part(convert(conversion), call, student.outputs)
    with torch.no_grad():
        found = student(torch.from_numpy(call[prior]))
    assert snr_db(latent, found[0].numpy()) > 40
    assert snr_db(audio, found[1].numpy()) > 35
    assert snr_db(audio, before[1]) < 25


def test_operators_and_shapes_are_those_of_post_training_quantization(
    prepared: Prepared, student: GraphNetwork
) -> None:
    _, conversion = prepared
    _change(student)
    finished = convert(learned_conversion(conversion, student))
    assert _operators(finished) == _operators(convert(conversion))


def test_training_begins_from_rounding_to_nearest(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codes of eight bits that were chosen before are not those of what weights become."""
    recipe, conversion = prepared
    chosen = with_chosen_codes(conversion, _CALLS, Silent())
    assert chosen.chosen.keys() > conversion.chosen.keys()
    given: list[Conversion] = []

    def stop(conversion: Conversion, *_: Any, **__: Any) -> None:
        given.append(conversion)
        raise KeyboardInterrupt

    monkeypatch.setattr(graph_training, "graph_task", stop)
    run: Any = SimpleNamespace(options=SimpleNamespace(learned_ranges=True))
    with pytest.raises(KeyboardInterrupt):
        graph_training.train_graph(chosen, recipe, _CALLS, sample_rate=22_050, run=run)
    assert given[0].chosen.keys() == conversion.chosen.keys()


def test_prepared_graph_is_not_changed(prepared: Prepared, student: GraphNetwork) -> None:
    _, conversion = prepared
    before, ranges = conversion.graph.SerializeToString(), dict(conversion.ranges)
    _change(student)
    learned = learned_conversion(conversion, student)
    assert learned.ranges != ranges
    assert conversion.graph.SerializeToString() == before
    assert conversion.ranges == ranges


def test_values_that_are_not_finite_are_refused(prepared: Prepared, student: GraphNetwork) -> None:
    _, conversion = prepared
    module = next(m for m in student.modules() if isinstance(m, ActivationFakeQuantize))
    limits = module.limits()
    module.high.fill_(np.inf)
    with pytest.raises(QuantizationError, match="with values that are not finite; train with"):
        learned_conversion(conversion, student)
    module.set_limits(limits)
    with torch.no_grad():
        next(student.parameters()).fill_(np.nan)
    with pytest.raises(QuantizationError, match="with values that are not finite; train with"):
        learned_conversion(conversion, student)
