"""The second rendering that a suite is compared with, of voices with and without noise."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.pairs import OTHER_SEEDS, Side, noise_seed, read_spoken, suite_jobs
from tts_compress.evaluation.store import Store, Synthesis
from tts_compress.evaluation.subject import open_subject
from tts_compress.evaluation.suite import Suite
from tts_compress.models import load
from tts_compress.models.base import GraphModel
from tts_compress.models.onnx_model import varied

_Spoken = dict[str, list[Synthesis]]


@pytest.fixture
def speak(tiny_path: Path, tmp_path: Path, small_suite: Suite) -> Callable[[float], _Spoken]:
    """Have the tiny voice speak as a reference, with noise of a scale, in a process of its own."""

    def speak_with(scale: float) -> _Spoken:
        path = tmp_path / "tiny.onnx"
        shutil.copy(tiny_path, path)
        config = json.loads(tiny_path.with_name("tiny.onnx.json").read_text("utf-8"))
        config["inference"] |= {"noise_scale": scale, "noise_w": scale}
        path.with_name("tiny.onnx.json").write_text(json.dumps(config), "utf-8")
        subject = open_subject(str(path), None)
        side = Side(role="reference", model=subject, suite=small_suite, texts=(0, 1))
        spoken: _Spoken = {}
        for role, position, piece in side.speak(Store(tmp_path / "store"), EvaluationOptions()):
            assert position == len(spoken.setdefault(role, []))
            spoken[role].append(piece)
        return spoken

    return speak_with


def test_no_text_has_the_noise_of_another(tiny_path: Path, small_suite: Suite) -> None:
    """Else all texts would be longer with the same seeds, and not independent."""
    jobs = suite_jobs(open_subject(str(tiny_path), None), small_suite, 0, (0, 1))
    (first, second), (third, fourth) = ([job.seed for job in part] for part in (jobs[:2], jobs[2:]))
    assert second - first == fourth - third == 1
    assert abs(third - first) > OTHER_SEEDS + len(small_suite.seeds)


@pytest.mark.slow
def test_other_seeds_of_a_voice_with_noise_are_its_other_renderings(
    speak: Callable[[float], _Spoken],
) -> None:
    spoken = speak(0.8)
    assert list(spoken) == ["reference", "other_seed"]
    assert [piece.seed - OTHER_SEEDS for piece in spoken["other_seed"]] == [
        noise_seed(piece.text, seed)
        for piece, seed in zip(spoken["reference"], [0, 1] * 2, strict=True)
    ]
    assert {piece.model for piece in spoken["other_seed"] + spoken["reference"]} == {
        spoken["reference"][0].model
    }


@pytest.mark.slow
def test_a_voice_without_noise_is_rendered_again_with_slightly_other_weights(
    speak: Callable[[float], _Spoken], tmp_path: Path, small_suite: Suite
) -> None:
    spoken = speak(0.0)
    voice, store = load(tmp_path / "tiny.onnx"), Store(tmp_path / "store")
    assert isinstance(voice, GraphModel)
    other = varied(voice)
    subject = open_subject(str(tmp_path / "tiny.onnx"), None)
    candidate = Side(role="candidate", model=subject, suite=small_suite, texts=(0, 1))
    assert {role for role, *_ in candidate.speak(store, EvaluationOptions())} == {"candidate"}
    for first, second in zip(spoken["reference"], spoken["other_seed"], strict=True):
        assert first.model != second.model
        before, after = read_spoken(store, first), read_spoken(store, second)
        assert np.array_equal(after.samples, other.synthesize(first.text, seed=first.seed).samples)
        noise = np.sum(np.square(before.samples - after.samples))
        assert 30.0 < 10.0 * np.log10(np.sum(np.square(before.samples)) / noise) < 110.0


@pytest.mark.slow
def test_a_text_whose_length_other_weights_move_is_compared_with_itself(
    speak: Callable[[float], _Spoken], tmp_path: Path
) -> None:
    spoken = speak(0.0)
    moved = spoken["other_seed"][0]
    wav = Store(tmp_path / "store").wav_path(moved).with_suffix(".json")
    assert moved.durations is not None
    late = (moved.durations[0] + 1, *moved.durations[1:])
    wav.write_text(moved.model_copy(update={"durations": late}).model_dump_json(), "utf-8")
    again = speak(0.0)
    assert again["other_seed"][0].audio == again["reference"][0].audio
    assert again["other_seed"][1:] == spoken["other_seed"][1:]
