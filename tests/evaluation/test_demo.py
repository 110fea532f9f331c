"""Real voices through the whole evaluation; minutes rather than seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tts_compress.evaluation import EvaluationOptions, Suite, read_gates, read_suite
from tts_compress.evaluation.intervals import FEWEST_TEXTS
from tts_compress.evaluation.metrics.distortion import summarize
from tts_compress.evaluation.pairs import OTHER_SEEDS
from tts_compress.evaluation.run import evaluate
from tts_compress.models import load
from tts_compress.numerics.spectra import observe

if TYPE_CHECKING:
    from pathlib import Path

    from tts_compress.evaluation.result import Evaluation

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def voice(demo: Path) -> Path:
    return demo


@pytest.fixture(scope="module")
def suite() -> Suite:
    """Return the first texts of the shipped suite, with one seed."""
    quick = read_suite("en-quick")
    return quick.model_copy(update={"utterances": quick.utterances[:2], "seeds": (0,)})


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a work directory that all share, so that the reference is synthesized once."""
    return tmp_path_factory.mktemp("evaluation")


def _damaged(voice: Path, directory: Path, tensor: str, factor: float) -> Path:
    """Write the voice with one weight multiplied."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(voice))
    (found,) = [item for item in model.graph.initializer if item.name.endswith(tensor)]
    values = np.asarray(numpy_helper.to_array(found) * np.float32(factor))
    found.CopyFrom(numpy_helper.from_array(values, found.name))
    path = directory / voice.name
    onnx.save(model, str(path))
    config = voice.with_name(f"{voice.name}.json").read_bytes()
    path.with_name(f"{voice.name}.json").write_bytes(config)
    return path


def _evaluate(voice: Path, candidate: Path, suite: Suite, work: Path) -> Evaluation:
    options = EvaluationOptions(timing_texts=1, timing_runs=1)
    return evaluate(voice, candidate, suite=suite, output=work, options=options)


def test_a_voice_against_itself_differs_in_nothing(voice: Path, suite: Suite, work: Path) -> None:
    """The recognizer understands it, and every difference is exactly zero."""
    found = _evaluate(voice, voice, suite, work)
    assert 0.0 < found.wer.reference < 0.5
    assert (found.wer.delta, found.wer.interval) == (0.0, None)  # of two texts
    assert found.signal.log_mel_distance_db == 0.0
    assert 1.0 == found.signal.same_timing == found.duration.kept == found.duration.ratio
    assert found.floors.other_seeds_log_mel_distance_db > 0.3
    assert found.memory.reference.peak_bytes > found.memory.reference.idle_bytes
    assert found.latency.ratio is not None
    assert 0.5 < found.latency.ratio < 2.0


def test_the_distortion_gate_catches_a_doubled_decoder_weight(voice: Path, tmp_path: Path) -> None:
    """Each alone, whatever it does to the words, by the upper end of the interval of a suite.

    Every fourth, from the first convolution to the last; the least heard of all is among them.
    """
    import onnx

    shortest = sorted((item.text for item in read_suite("en-quick").utterances), key=len)
    texts = shortest[:FEWEST_TEXTS]
    speak = load(voice).synthesize
    reference, other = ([speak(text, seed=seed) for text in texts] for seed in (0, OTHER_SEEDS))
    names = [item.name for item in onnx.load(str(voice)).graph.initializer]
    ends = {}
    decoder = [name for name in names if ".dec." in name and name.endswith("weight")]
    for name in decoder[::4]:
        broken = load(_damaged(voice, tmp_path, name, 2.0))
        spoken = [broken.synthesize(text, seed=0) for text in texts]
        found = summarize(list(map(observe, reference, spoken, other)), range(len(texts)))
        assert found is not None
        assert found.interval is not None
        ends[name] = found.interval[1]
    limit = max(g.limit for g in read_gates("default").gate if g.metric == "distortion.interval.1")
    assert len(ends) > 5
    assert min(ends.values()) > limit, min(ends.items(), key=lambda item: item[1])
