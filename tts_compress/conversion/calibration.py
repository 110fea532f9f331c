"""What activations are observed on: texts for a voice, a file of arrays for a bare graph."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.artifact import CalibrationRecord, sha256_of
from tts_compress.errors import RecipeError
from tts_compress.models.base import GraphModel
from tts_compress.models.feeds import FEEDS_SUFFIX, graph_inputs, open_feeds
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.recipes.recipe import read_calibration_set

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tts_compress.models.base import OnnxGraph
    from tts_compress.onnx.session import Feeds
    from tts_compress.recipes.recipe import Calibration

__all__ = ["CalibrationData", "is_feeds", "open_calibration"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationData:
    """Inputs to run a graph on."""

    calls: Callable[[], Iterator[Feeds]]
    """Returns the inputs of each call of the graph with fed noise, the same every time."""

    total: int
    """Texts or calls, for the progress bar."""

    record: CalibrationRecord


def is_feeds(calibration: str | Path | None) -> bool:
    """Return whether a calibration is given as a file of arrays rather than as texts."""
    return calibration is not None and str(calibration).endswith(FEEDS_SUFFIX)


def open_calibration(
    model: OnnxGraph, settings: Calibration, given: str | Path | None, *, seed: int
) -> CalibrationData:
    """Return what a model is to be run on.

    Args:
        model: A voice, or a bare graph.
        settings: The recipe's table.
        given: The user's choice in place of the recipe's: a calibration set for a voice, an
            `.npz` for a bare graph, which has no other.
        seed: Of the noise that the graph draws.

    Raises:
        RecipeError: There is no such set or file, it is malformed, or of the wrong kind.
    """
    if isinstance(model, GraphModel):
        if is_feeds(given):
            raise RecipeError(
                f"'{given}' holds arrays, but '{model.spec}' is a voice, which is calibrated on "
                "texts; give a calibration set's name or TOML file"
            )
        return _texts(model, settings, given, seed)
    if given is None or not is_feeds(given):
        what = "nothing was" if given is None else f"'{given}' was"
        raise RecipeError(
            f"'{model.spec}' is a bare graph, which is calibrated on a file of arrays; {what} "
            "given: give an .npz with arrays named '<call>/<input>'"
        )
    return _arrays(model, settings, Path(given), seed)


def _texts(
    model: GraphModel, settings: Calibration, given: str | Path | None, seed: int
) -> CalibrationData:
    name = given or settings.set
    if name is None:
        raise RecipeError("the recipe names no calibration set; give a set's name or TOML file")
    found = read_calibration_set(str(name))
    texts = found.texts[: settings.utterances]
    record = CalibrationRecord(
        set=found.name,
        sha256=hashlib.sha256("\n".join(texts).encode()).hexdigest(),
        utterances=len(texts),
        observer=settings.observer,
        seed=seed,
    )

    def calls() -> Iterator[Feeds]:
        return model.calibration_calls(texts, seed=seed)

    return CalibrationData(calls=calls, total=len(texts), record=record)


def _arrays(model: OnnxGraph, settings: Calibration, path: Path, seed: int) -> CalibrationData:
    graph = model.graph()
    feeds = open_feeds(path, graph_inputs(graph))
    count = min(feeds.calls, settings.utterances)
    noise = [value.name for value in feed_noise(graph).graph.input]
    record = CalibrationRecord(
        set=path.name,
        sha256=sha256_of(path),
        utterances=count,
        observer=settings.observer,
        seed=seed,
    )

    def calls() -> Iterator[Feeds]:
        for number, call in enumerate(feeds.read(count)):
            yield call | draw_noise(noise, seed=(seed, number))

    return CalibrationData(calls=calls, total=count, record=record)
