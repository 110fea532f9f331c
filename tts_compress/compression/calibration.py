"""Calibration data: texts for a voice, arrays for a bare graph."""

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from tts_compress.artifact import CalibrationRecord, sha256_of
from tts_compress.config import data_names
from tts_compress.errors import MissingExtraError, RecipeError, TextError, TTSCompressWarning
from tts_compress.models.base import GraphModel, OnnxGraph
from tts_compress.models.feeds import FEEDS_SUFFIX, graph_inputs, open_feeds
from tts_compress.models.speakers import primary_language, speakers_in_turn
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.quantize.collect import Calls
from tts_compress.onnx.session import Feeds
from tts_compress.recipes.recipe import Calibration, CalibrationSet, read_calibration_set


def is_feeds(calibration: str | Path | None) -> bool:
    """Return True if a calibration is given as a file of arrays rather than as texts."""
    return calibration is not None and str(calibration).endswith(FEEDS_SUFFIX)


def read_texts(
    settings: Calibration, chosen: str | Path | None, seed: int, language: str | None = None
) -> tuple[tuple[str, ...], CalibrationRecord]:
    """Return the texts that a model is observed on, and the record of them.

    Args:
        settings: The recipe's table.
        chosen: A calibration set in the place of the recipe's.
        seed: Seed of the noise the model speaks them with.
        language: The language the model states: a shipped set of that language takes the place of
            the shipped one that the recipe names, but not of a file or of a chosen one.

    Raises:
        RecipeError: There is no such calibration set.
    """
    name = chosen or settings.set
    if not name:
        raise RecipeError("the recipe names no calibration set; give a set's name or TOML file")
    source = read_calibration_set(str(name))
    if chosen is None and language is not None and not str(name).endswith(".toml"):
        source = _in_language(source, language)
    texts = source.texts[: settings.utterances]
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    return texts, _record(settings, source.name, digest, len(texts), seed)


def open_calibration(
    model: OnnxGraph,
    settings: Calibration,
    chosen: str | Path | None,
    *,
    seed: int,
    part: str = "",
) -> tuple[Calls, CalibrationRecord]:
    """Return the inputs that a graph is observed on, and the record of them.

    Args:
        model: A voice, or a bare graph.
        settings: The recipe's table.
        chosen: The user's choice in place of the recipe's: a calibration set for a voice, an
            `.npz` for a bare graph, which has no other.
        seed: Seed of the noise that the graph draws.
        part: Name of the graph in the model.

    Raises:
        RecipeError: There is no such set or file, it is malformed, or of the wrong kind.
    """
    if isinstance(model, GraphModel):
        if is_feeds(chosen):
            raise RecipeError(
                f"'{chosen}' holds arrays, but '{model.spec}' is a voice, which is calibrated on "
                "texts; give a calibration set's name or TOML file"
            )
        texts, record = read_texts(settings, chosen, seed, model.speaking.language)
        record = replace(record, speakers=speakers_in_turn(model)[: len(texts)])
        calls = partial(model.calibration_calls, texts, seed=seed, part=part)
        return Calls(calls, len(texts)), record
    if chosen is None or not is_feeds(chosen):
        what = "nothing was" if chosen is None else f"'{chosen}' was"
        raise RecipeError(
            f"'{model.spec}' is a bare graph, which is calibrated on a file of arrays; {what} "
            "given: give an .npz with arrays named '<call>/<input>'"
        )
    path, graph = Path(chosen), model.graph()
    feeds = open_feeds(path, graph_inputs(graph))
    count = min(feeds.calls, settings.utterances)
    noise = [value.name for value in feed_noise(graph).graph.input]

    def read() -> Iterator[Feeds]:
        for number, call in enumerate(feeds.read(count)):
            yield call | draw_noise(noise, seed=(seed, number))

    return Calls(read, count), _record(settings, path.name, sha256_of(path), count, seed)


def trial_feeds(
    model: OnnxGraph, calls: Calls | None, *, seed: int, part: str = ""
) -> Feeds | None:
    """Return real inputs of a graph for one run; None where there are none.

    Args:
        model: A voice, which speaks a text of its language, else an English one; or a bare graph.
        calls: Inputs that it is calibrated on; None if it is not.
        seed: Seed of the noise that the graph draws.
        part: Name of the graph in the model.

    Raises:
        ModelError: The model cannot be called with its calibration data.
    """
    if calls is None and isinstance(model, GraphModel):
        name = primary_language(model.speaking.language or "en")
        is_shipped = name in data_names("calib/sets")
        texts = read_calibration_set(name if is_shipped else "en").texts[:1]
        # The model may have no tokens of the text; a phonemizer is needed for calibration only.
        with suppress(TextError, MissingExtraError):
            return next(model.calibration_calls(texts, seed=seed, part=part), None)
    return None if calls is None else next(calls.feeds(), None)


def _in_language(source: CalibrationSet, language: str) -> CalibrationSet:
    """Return the shipped set of a language; without one, `source`, with a warning."""
    wanted, shipped = primary_language(language), data_names("calib/sets")
    if wanted == primary_language(source.language):
        return source
    if wanted in shipped:
        return read_calibration_set(wanted)
    warnings.warn(
        f"the voice speaks {language!r}, and there is no calibration set of that language (but "
        f"{', '.join(shipped)}); it is calibrated on {source.name!r}: give texts with "
        "--calibration",
        TTSCompressWarning,
        stacklevel=2,
    )
    return source


def _record(
    settings: Calibration, name: str, digest: str, count: int, seed: int
) -> CalibrationRecord:
    return CalibrationRecord(
        set=name, sha256=digest, utterances=count, observer=settings.observer, seed=seed
    )
