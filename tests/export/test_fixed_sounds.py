"""Distances of codes of 8 and 16 bits in fixed sizes, beside those of `int8` on CPUs.

pytest -s -m slow tests/export/test_fixed_sounds.py   prints them
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from runpy import run_path
from typing import Any, Literal

import numpy as np
import onnxruntime
import pytest

from tests.export.simulators import open_in_qnn, open_in_rknn
from tests.measures import snr_db
from tts_compress import find_recipe
from tts_compress.compression import compress
from tts_compress.export.fixed import export_fixed
from tts_compress.models import load
from tts_compress.models.streaming import prepare_part
from tts_compress.onnx.graph import Graph, copy_model, with_outputs
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.receptive import observe_shapes, walk
from tts_compress.onnx.stages import Stage, single_stage

_PLAYER: Any = run_path(str(Path(__file__).parents[2] / "examples" / "fixed" / "play.py"))["Player"]
_Run = Callable[[dict[str, Any]], Any]
_TEXTS = (
    "Please call Stella.",
    "The quick brown fox jumps over the lazy dog.",
    "Ask her to bring these things with her from the store.",
    "Six spoons of fresh snow peas, five thick slabs of blue cheese.",
)


def _cut(voice: Any, *, original: bool = False) -> tuple[Any, Stage, onnxruntime.InferenceSession]:
    """Return a voice's graph, where its sound begins, and the part behind."""
    part, calls = voice.parts[""], voice.two_calls("")
    model, feeds, outputs = prepare_part(part, voice.graph(), calls, original=original)
    field = walk(Graph(copy_model(model)), observe_shapes(model, feeds, "voice"), outputs)
    _, stage, sound = single_stage(model, field, "voice")
    return model, stage, onnxruntime.InferenceSession(sound.SerializeToString())


def _small(original: Any, form: str, texts: int) -> Any:
    """Return a voice in INT8 in a format, calibrated on so many texts."""
    recipe = find_recipe(original.family, "int8")
    assert recipe.calibration is not None
    few = recipe.calibration.model_copy(update={"utterances": texts})
    changed = recipe.model_copy(update={"format": form, "calibration": few})
    return compress(original, "int8", recipe=changed, quality="fast")


def _original(name: str, request: pytest.FixtureRequest) -> Any:
    """Return a voice in FP32; skip where it is not at hand."""
    if name == "demo":
        return load(name)
    folder = request.getfixturevalue("assets") / "trained-voices" / name
    if not folder.is_dir():
        pytest.skip("no such voice")
    return load(folder / f"{name}.onnx")


def _distances(
    original: Any,
    runs: Mapping[str, tuple[Stage, _Run]],
    texts: Sequence[str] = _TEXTS,
    seeds: Sequence[int] = (0,),
) -> dict[str, list[float]]:
    """Return each run's signal-to-noise ratios to FP32 in dB, from the frames of the texts."""
    model, whole, _ = _cut(original)
    names = sorted({stage.reads[0] for stage, _ in runs.values()})
    watched = feed_noise(with_outputs(copy_model(model), [*names, *whole.returns]))
    session = onnxruntime.InferenceSession(watched.SerializeToString())
    distances: dict[str, list[float]] = {form: [] for form in runs}
    for call in chain.from_iterable(original.calibration_calls(texts, seed=s) for s in seeds):
        *tensors, real = session.run(None, call)
        for form, (stage, run) in runs.items():
            frames = np.moveaxis(tensors[names.index(stage.reads[0])], stage.axis, -1)
            sound = np.asarray(run({stage.reads[0]: frames})).reshape(-1)
            distances[form].append(snr_db(real.reshape(-1), sound))
    return distances


@pytest.mark.slow
@pytest.mark.parametrize("name", ["demo", "hfc"])
def test_codes_in_fixed_sizes_are_no_worse_than_those_of_the_processor(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """On the same frames; 16 bits for activations leave little but the rounding of weights.

    Medians, because a flow's first coupling amplifies that at rare moments.
    """
    original, runs = _original(name, request), dict[str, tuple[Stage, _Run]]()
    for form in ("qoperator", "qdq", "qdq16"):
        small = _small(original, form, 16)
        _, stage, dynamic = _cut(small)
        runs[form] = stage, partial(dynamic.run, None)
        if form != "qoperator":
            export_fixed(small, tmp_path / form, [128, 256])
            runs[form] = stage, partial(_PLAYER(tmp_path / form).sound, sides={})
    distances = _distances(original, runs, seeds=(0, 10))
    print(name, {form: np.round(rows, 1).tolist() for form, rows in distances.items()})
    processor, narrow, wide = (np.median(distances[form]) for form in runs)
    assert narrow > processor - 1.5
    assert wide > narrow + 6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["demo", "hfc"])
@pytest.mark.parametrize(
    ("opened", "forms", "texts"),
    [
        pytest.param(open_in_rknn, ("fp32", "qdq"), _TEXTS, id="rknn"),
        pytest.param(open_in_qnn, ("fp32", "qdq", "qdq16"), _TEXTS[:1], id="qnn"),  # slow
    ],
)
def test_simulators_of_npus_say_what_processors_do(
    name: str,
    opened: Callable[[Path], _Run],
    forms: Sequence[Literal["fp32", "qdq", "qdq16"]],
    texts: Sequence[str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """They compute FP32 in FP16, and codes in integers: the energies of both errors add up.

    Where everything has codes, of 16 bits, there is nothing in FP16.
    """
    original, runs = _original(name, request), dict[str, tuple[Stage, _Run]]()
    for form in forms:
        voice = original if form == "fp32" else _small(original, form, 64)
        _, stage, dynamic = _cut(voice, original=voice is original)
        export_fixed(voice, tmp_path / form, [128])
        player = _PLAYER(tmp_path / form, opened)
        runs[form] = stage, partial(dynamic.run, None)
        runs[f"{form} in the simulator"] = stage, partial(player.sound, sides={})
    distances = _distances(original, runs, texts)
    print(name, {form: np.round(rows, 1).tolist() for form, rows in distances.items()})
    halves = distances["fp32 in the simulator"]
    assert min(halves) > 25
    for form in forms[1:]:
        real = [halves] if form == "qdq" else []
        errors = [10 ** (-np.array(snr) / 10) for snr in (*real, distances[form])]
        expected = -10 * np.log10(np.sum(errors, axis=0))
        assert np.mean(expected - distances[f"{form} in the simulator"]) < 1.5
