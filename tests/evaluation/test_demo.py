"""Damage of the embedded voice, weight by weight; minutes rather than seconds."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tts_compress.evaluation import read_gates, read_suite
from tts_compress.evaluation.intervals import FEWEST_TEXTS
from tts_compress.evaluation.metrics.distortion import summarize
from tts_compress.evaluation.pairs import OTHER_SEEDS
from tts_compress.models import load
from tts_compress.numerics.spectra import observe

pytestmark = pytest.mark.slow


def _damaged(voice: Path, directory: Path, tensor: str, factor: float) -> Path:
    """Write the voice with one weight multiplied."""
    model = onnx.load(str(voice))
    (found,) = [item for item in model.graph.initializer if item.name.endswith(tensor)]
    values = np.asarray(numpy_helper.to_array(found) * np.float32(factor))
    found.CopyFrom(numpy_helper.from_array(values, found.name))
    path = directory / voice.name
    onnx.save(model, str(path))
    config = voice.with_name(f"{voice.name}.json").read_bytes()
    path.with_name(f"{voice.name}.json").write_bytes(config)
    return path


def test_the_distortion_gate_catches_a_doubled_decoder_weight(demo: Path, tmp_path: Path) -> None:
    """Each alone, whatever it does to the words, by the upper end of the interval of a suite.

    Every fourth, from the first convolution to the last; the least heard of all is among them.
    """
    shortest = sorted((item.text for item in read_suite("en-quick").utterances), key=len)
    texts = shortest[:FEWEST_TEXTS]
    speak = load(demo).synthesize
    reference, other = ([speak(text, seed=seed) for text in texts] for seed in (0, OTHER_SEEDS))
    names = [item.name for item in onnx.load(str(demo)).graph.initializer]
    ends = {}
    decoder = [name for name in names if ".dec." in name and name.endswith("weight")]
    for name in decoder[::4]:
        broken = load(_damaged(demo, tmp_path, name, 2.0))
        spoken = [broken.synthesize(text, seed=0) for text in texts]
        found = summarize(list(map(observe, reference, spoken, other)), range(len(texts)))
        assert found is not None
        assert found.interval is not None
        ends[name] = found.interval[1]
    limit = max(g.limit for g in read_gates("default").gate if g.metric == "distortion.interval.1")
    assert len(ends) > 5
    assert min(ends.values()) > limit, min(ends.items(), key=lambda item: item[1])
