"""The benchmark's choices and arithmetic; `make bench` measures."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.__main__ import find_schemes, main
from benchmarks.fidelity import Spoken, compare, speak
from benchmarks.sentences import Sentence
from benchmarks.timing import summarize
from benchmarks.voices import VOICES
from benchmarks.voices.piper import make_sentences, search_scale
from tts_compress.models.base import GraphModel

_PIPER = VOICES["medium"]


@pytest.mark.parametrize(("family", "arguments"), [("piper", []), ("contract", ["--train"])])
def test_schemes_that_train_are_timed_only_when_asked_for(
    arguments: list[str], family: str
) -> None:
    """Training takes longer than everything else together."""
    chosen = find_schemes(family, main.parse(arguments))
    assert "int8" in chosen
    assert ("int8-qat" in chosen) == (arguments == ["--train"])
    named = main.parse([*arguments, "--schemes", "int8-qat"])
    assert find_schemes(family, named) == ["int8-qat"]


def test_scale_is_found_in_a_staircase() -> None:
    """Frames are whole, so the wanted number may lie between two steps."""
    scale = search_scale(lambda s: float(np.ceil(s * np.array([0.3, 1.1, 2.0])).sum()), 17.0)
    assert np.ceil(scale * np.array([0.3, 1.1, 2.0])).sum() == pytest.approx(17, abs=1)


def test_ratios_are_reference_over_candidate() -> None:
    timing = summarize("5 s", 1, ([10.0, 20.0, 40.0], 4.5), ([60.0, 30.0, 90.0], 5.0))
    assert timing.ratio_min == pytest.approx(3.0)
    assert timing.ratio_median == pytest.approx(3.0)
    assert timing.rtf == pytest.approx(0.020 / 4.5)
    assert timing.length_change == pytest.approx(-0.1)


@pytest.fixture(scope="module")
def sentence(tiny: GraphModel) -> Sentence:
    """Return a sentence of half a second."""
    [made] = make_sentences(tiny, [0.5])
    return made


@pytest.fixture(scope="module")
def reference(tiny: GraphModel, sentence: Sentence) -> list[Spoken]:
    """Return what the tiny voice makes of it."""
    return speak(tiny.files().weights[0], [sentence], _PIPER)


@pytest.mark.slow
def test_a_sentence_has_the_wanted_length_and_speaks_equal_noise(
    tiny: GraphModel, sentence: Sentence, reference: list[Spoken]
) -> None:
    again = speak(tiny.files().weights[0], [sentence], _PIPER, reference)
    assert sentence.tokens == round(0.5 * tiny.sample_rate / 256 / 2.5)
    assert compare(reference, again).snr_db is None  # no difference at all
    assert compare(reference, again).kept_durations == 1.0


def test_given_durations_are_spoken(
    tiny: GraphModel, sentence: Sentence, reference: list[Spoken], tmp_path: Path
) -> None:
    """A candidate that predicts other durations is still run with the reference's."""
    changed = onnx.load(tiny.files().weights[0])
    ceil = next(node for node in changed.graph.node if node.op_type == "Ceil")
    slower = onnx.helper.make_node("Add", [ceil.input[0], ceil.input[0]], ["slower"])
    ceil.input[0] = "slower"
    changed.graph.node.insert(list(changed.graph.node).index(ceil), slower)
    onnx.save(changed, tmp_path / "slow.onnx")
    beside = tiny.files().settings[0]
    shutil.copyfile(beside, tmp_path / "slow.onnx.json")
    candidate = speak(tmp_path / "slow.onnx", [sentence], _PIPER, reference)
    found = compare(reference, candidate)
    assert len(candidate[0].audio.samples) == len(reference[0].audio.samples)
    assert found.log_mel_db == pytest.approx(0.0, abs=1e-3)
    assert found.duration_change is not None
    assert found.duration_change > 0.2
