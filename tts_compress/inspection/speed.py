"""Speed of a compressed model beside its original, on the machine at hand."""

from collections.abc import Callable
from statistics import median
from time import perf_counter

from tts_compress.errors import model_errors
from tts_compress.models.base import GraphModel, Model, OnnxGraph
from tts_compress.onnx.session import Feeds, open_session, run_session

_TEXT = "Hello there, and thank you for listening to this."
"""Voices of languages other than English pronounce it as they can."""

_ROUNDS = 5


def speed_ratio(original: Model, small: Model, feeds: Feeds | None = None) -> float | None:
    """Return how many times as fast a compressed ONNX model runs, on one thread.

    The two take turns; the medians of five turns are compared, in a voice by the length of what it
    spoke. A few per cent are the machine's noise.

    Args:
        original: The model as it was.
        small: The same, compressed.
        feeds: Inputs of a graph that speaks no texts.

    Returns:
        The ratio; None for models that are no graphs, and for such a graph without inputs.

    Raises:
        ModelError: A model cannot run here.
        TextError: A voice cannot speak the text.
    """
    if isinstance(original, GraphModel) and isinstance(small, GraphModel):
        runs = (_speaking(original), _speaking(small))
    elif feeds is not None and isinstance(original, OnnxGraph) and isinstance(small, OnnxGraph):
        runs = (_running(original, feeds), _running(small, feeds))
    else:
        return None
    for run in runs:
        run()  # the first one also allocates
    turns = [(runs[0](), runs[1]()) for _ in range(_ROUNDS)]
    return median(before for before, _ in turns) / median(after for _, after in turns)


def _speaking(voice: GraphModel) -> Callable[[], float]:
    """Return a run of a voice's own runtime: seconds for a second of audio."""
    runtime = voice.open_runtime(threads=1)

    def run() -> float:
        start = perf_counter()
        with model_errors(f"'{voice.spec}' cannot be run"):
            audio = runtime.speak(_TEXT)
        return (perf_counter() - start) / max(audio.duration_s, 1e-3)

    return run


def _running(model: OnnxGraph, feeds: Feeds) -> Callable[[], float]:
    """Return a run of a graph: seconds."""
    session = open_session(model.graph(), model.spec, threads=1)

    def run() -> float:
        start = perf_counter()
        run_session(session, feeds, model.spec)
        return perf_counter() - start

    return run
