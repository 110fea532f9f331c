"""The sound of a graph, compared with that of candidates: what counts as damage, and how much."""

import json
import shutil
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any, cast

import numpy as np
import onnx
import pytest

from tests.evaluation.metrics.planted import burst, changed, make_speech, pause
from tts_compress import load
from tts_compress.audio import Audio
from tts_compress.cli import main
from tts_compress.compression.sound import (
    OTHER_SEED,
    AudioComparison,
    Say,
    SoundDamage,
    Speech,
    SpeechComparison,
    hear,
    side_by_side,
    speech,
)
from tts_compress.compression.workbench import Job, Workbench
from tts_compress.models.base import GraphModel, Speaking
from tts_compress.models.onnx_model import varied
from tts_compress.numerics.spectra import mu_law
from tts_compress.progress import Silent
from tts_compress.recipes.recipe import find_recipe, read_calibration_set

_JOB = Job(seed=0, progress=Silent())


@pytest.mark.slow
def test_an_artifact_is_heard_beside_its_original(
    tiny: GraphModel, compressed: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    voice, small = cast("GraphModel", load(tiny.spec)), load(compressed("fp16"))
    assert isinstance(small, GraphModel)
    good = hear(voice, small)
    assert not good.is_audible
    assert good.describe().startswith("sound of 4 texts: distortion 0.0")
    speak = type(voice).synthesize

    def with_hiss(model: GraphModel, text: str, *, seed: int | None = 0) -> Audio:
        audio = speak(model, text, seed=seed)
        hiss = np.random.default_rng(0).normal(0, 0.02, audio.samples.shape)
        hissing = (audio.samples + hiss).astype(np.float32)
        return replace(audio, samples=hissing if model.manifest else audio.samples)

    monkeypatch.setattr(type(voice), "synthesize", with_hiss)
    bad = hear(voice, small)
    assert bad.is_audible
    assert bad.distortion > good.distortion + 0.5


_IN_PAUSES = SoundDamage(distortion=0.0, floor_db=4.0, texts=4)
_LITTLE = SoundDamage(distortion=0.1, floor_db=0.0, texts=4)


def test_damage_is_described() -> None:
    assert "pauses +4.0 dB, every duration kept" in _IN_PAUSES.describe()
    assert "distortion 0.10, pauses +0.0 dB" in _LITTLE.describe()
    moved = SoundDamage(distortion=2.0, floor_db=0.0, moved=4, texts=4)
    assert "distortion 2.00, other durations in 4" in moved.describe()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [_IN_PAUSES, _LITTLE])
def test_quantize_says_what_is_heard(
    tiny_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    damage: SoundDamage,
) -> None:
    monkeypatch.setattr("tts_compress.compression.sound.hear", lambda *_: damage)
    arguments = ["quantize", str(tiny_path), "--scheme", "fp16", "--output", str(tmp_path / "x")]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert damage.describe() in printed.out
    assert ("damage can be heard" in printed.err) is (damage is _IN_PAUSES)


def test_a_moved_length_uses_any_bound_up() -> None:
    assert SoundDamage(distortion=0.1, floor_db=0.0, moved=1).share(0.5) == np.inf
    assert SoundDamage(distortion=0.1, floor_db=0.0, moved=0).share(0.5) == pytest.approx(0.2)
    assert SoundDamage(distortion=0.0, floor_db=6.0, moved=0).share(0.5) == pytest.approx(2.0)
    assert SoundDamage(distortion=0.0, floor_db=0.0, moment=0.3).share(0.5) == pytest.approx(1.0)


@pytest.mark.slow
def test_one_bad_moment_counts_though_the_mean_hides_it() -> None:
    speech = [make_speech(seed) for seed in range(3)]
    comparison = AudioComparison(speech, speech)
    rounded = [changed(audio, np.round(audio.samples * 2**15) / 2**15) for audio in speech]
    spoilt = [rounded[0], burst(rounded[1]), rounded[2]]
    clean, bad = comparison.judge(rounded), comparison.judge(spoilt)
    assert max(bad.distortion, clean.share(0.5)) < 0.5
    assert bad.share(0.5) > 1.0
    assert max(comparison.energies(rounded[:2], 0.5)) < 0.5
    assert max(comparison.energies(spoilt[:2], 0.5)) > 1.0


def test_what_another_seed_of_the_reference_does_as_well_is_no_damage() -> None:
    speech = [make_speech()]
    spoilt = [burst(speech[0])]
    assert AudioComparison(speech, speech).judge(spoilt).moment > 1.0
    assert AudioComparison(speech, spoilt).judge(spoilt).moment == 0.0


def test_samples_that_are_not_finite_use_any_bound_up() -> None:
    """Each measure takes them for zeros, which in a pause are no damage."""
    speech = [pause(make_speech())]
    silent = int(np.argmin(np.abs(speech[0].samples)))
    samples = speech[0].samples.copy()
    samples[silent] = np.nan
    broken = [changed(speech[0], samples)]
    comparison = AudioComparison(speech, speech)
    assert comparison.judge(broken).share(0.5) == np.inf
    assert comparison.energies(broken, 0.5) == (np.inf,) * 3
    itself = AudioComparison(broken, broken)
    assert itself.judge(broken).share(0.5) == 0.0


def test_what_still_waits_when_an_error_leaves_is_not_begun() -> None:
    begun = list[int]()

    def work(number: int) -> None:
        begun.append(number)
        sleep(0.01)

    def interrupted() -> None:
        with side_by_side() as pool:
            for number in range(1000):
                pool.submit(work, number)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(begun) < 500


def _second() -> Audio:
    speech = make_speech()
    return changed(speech, speech.samples[: speech.sample_rate])


def test_speech_that_mu_law_brings_nearer_is_judged_beside_itself() -> None:
    """Other renderings may be nearer to what mu-law leaves: a distance from them shows nothing."""
    speech = [_second()]
    comparison = AudioComparison(speech, [mu_law(speech[0])])
    noisy = [changed(speech[0], speech[0].samples + np.float32(1e-3))]
    assert comparison.judge(noisy).distortion == comparison.same_noise(noisy) > 0.0


def test_silence_bears_no_damage() -> None:
    """It is what mu-law makes of it, and there is no unit."""
    silence = [changed(_second(), np.zeros(22_050, np.float32))]
    comparison = AudioComparison(silence, silence)
    assert comparison.same_noise(silence) == 0.0
    assert comparison.same_noise([_second()]) == np.inf


def test_a_group_that_moves_a_length_is_too_much() -> None:
    speech = replace(_second(), durations=np.array([4, 3]))
    moved = replace(speech, durations=np.array([3, 4]))
    assert AudioComparison([speech], [speech]).energies([moved], 0.5) == (np.inf,) * 3


@pytest.mark.slow
def test_the_worst_of_more_texts_is_compared_with_that_of_six() -> None:
    """The largest of independent sizes grows as the logarithm of their number."""
    speech = _second()

    def moment(texts: int) -> float:
        several = [speech] * texts
        return AudioComparison(several, several).judge([burst(speech)] * texts).moment

    assert moment(2) / moment(6) == pytest.approx(np.log(7) / np.log(3))
    assert moment(12) / moment(6) == pytest.approx(np.log(7) / np.log(13))


_CANDIDATE = onnx.ModelProto()


def _late(texts: Collection[int]) -> Speech:
    """Return a voice whose only candidate hisses in some texts, and moves a symbol by a frame."""
    kept = replace(pause(_second()), durations=np.array([4, 3]))
    noise = 0.01 * np.random.default_rng(2).standard_normal(len(kept.samples))
    moved = changed(kept, kept.samples + noise)
    late = replace(moved, durations=np.array([3, 4]))

    def opened(candidate: onnx.ModelProto | None, _: int) -> Say:
        return lambda number: late if candidate is _CANDIDATE and number in texts else kept

    return Speech(16, opened)


@pytest.mark.slow
def test_texts_with_another_timing_are_not_judged_unless_they_are_many() -> None:
    few, many, every = (SpeechComparison(_late(range(n)), 0).damage(_CANDIDATE) for n in (4, 5, 16))
    assert (few.moved, many.moved, every.moved) == (4, 5, 16)
    assert (few.floor_db, few.moment) == (0.0, 0.0)
    assert few.share(0.5) == few.distortion / 0.5 > 0.0
    assert many.share(0.5) == every.share(0.5) == np.inf


@pytest.mark.slow
def test_each_text_is_spoken_by_another_speaker(
    choir_path: Path, quick_recipe: Callable[[str], Path]
) -> None:
    voice: Any = load(choir_path)
    spoken = speech(Workbench(voice, find_recipe("piper", "int8", quick_recipe("int8"))), _JOB)
    assert spoken is not None
    texts = sorted(read_calibration_set("en").texts[:3], key=len)
    assert spoken.texts == 3
    say = spoken.open(None, 0)
    for number, (text, name) in enumerate(zip(texts, voice.speakers, strict=True)):
        alone = voice.speaking_as(Speaking(speaker=name)).synthesize(text, seed=number)
        assert np.array_equal(say(number).samples, alone.samples)


def test_what_is_tried_computes_on_one_thread_that_waits_for_nobody(tiny: GraphModel) -> None:
    tried: Any = tiny.with_graphs({}, None, threads=1).with_graphs({"": tiny.graph()}, None)
    tried.synthesize("Hello.")
    ((session, _),) = tried._opened.values()
    options = session.get_session_options()
    assert options.intra_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.slow
def test_a_voice_without_noise_is_compared_with_slightly_other_weights(
    tiny_path: Path, quick_recipe: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copy(tiny_path, tmp_path)
    config = json.loads(tiny_path.with_name("tiny.onnx.json").read_text("utf-8"))
    config["inference"] |= {"noise_scale": 0.0, "noise_w": 0.0}
    (tmp_path / "tiny.onnx.json").write_text(json.dumps(config), "utf-8")
    voice: Any = load(tmp_path / "tiny.onnx")
    spoken = speech(Workbench(voice, find_recipe("piper", "int8", quick_recipe("int8"))), _JOB)
    assert spoken is not None
    first, other = (spoken.open(None, seed)(0) for seed in (0, OTHER_SEED))
    text = min(read_calibration_set("en").texts[:3], key=len)
    assert np.array_equal(first.samples, voice.synthesize(text, seed=0).samples)
    assert np.array_equal(other.samples, varied(voice).synthesize(text, seed=0).samples)
    assert not np.array_equal(first.samples, other.samples)
