"""Recognizers and measures analyse each audio once, in as many processes as they may."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tts_compress.audio import Audio, audio_sha256, write_float_wav
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.metric import Measure
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.process import Worker
from tts_compress.evaluation.store import Analyzer, Store, find_analyzer, find_recognizer
from tts_compress.evaluation.store import analyze as analyze_files


def analyze(
    store: Store, analyzer: Analyzer, audios: dict[str, Path], options: EvaluationOptions
) -> dict[str, Any]:
    """Analyse files that are all there."""
    return analyze_files(store, analyzer, audios.items(), options, total=len(audios))


def _analysed(log: Path) -> list[str]:
    return log.read_text().splitlines()


@pytest.fixture
def audios(tmp_path: Path, chirp: Audio) -> dict[str, Path]:
    found = {}
    for index in range(5):
        audio = replace(chirp, samples=chirp.samples[: 4000 + 400 * index])
        write_float_wav(tmp_path / f"{index}.wav", audio)
        found[audio_sha256(audio)] = tmp_path / f"{index}.wav"
    return found


def test_each_audio_is_analysed_once(
    store: Store,
    audios: dict[str, Path],
    fast_options: EvaluationOptions,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In two processes; the audio of a truncated piece is recognized again."""
    monkeypatch.setenv("FAKE_RECOGNIZER_LOG", str(log))
    options = replace(fast_options, jobs=2)
    ears = find_recognizer("pocketsphinx", "en-us", options)
    assert (ears.description, ears.device) == ("tone reader 1", "cpu")
    assert {*analyze(store, ears, audios, options)} == {*audios}
    assert sorted(f"{4000 + 400 * index}" for index in range(5)) == sorted(_analysed(log))
    analyze(store, ears, audios, options)
    assert len(_analysed(log)) == 5
    piece = next((store.root / "analyses").rglob("*.json"))
    piece.write_text(piece.read_text()[:-9])
    analyze(store, ears, audios, options)
    assert len(_analysed(log)) == 6


@pytest.mark.slow
def test_one_process_is_enough_for_a_gpu(
    store: Store,
    audios: dict[str, Path],
    fast_options: EvaluationOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several would hold the same weights in the memory of one device."""
    started = []

    class Counted(Worker):
        def __init__(self, *given: Any, **more: Any) -> None:
            started.append(given)
            super().__init__(*given, **more)

    ears = find_recognizer("pocketsphinx", "en-us", fast_options)
    monkeypatch.setattr("tts_compress.evaluation.store.Worker", Counted)
    analyze(store, replace(ears, device="cuda"), audios, replace(fast_options, jobs=3))
    assert len(started) == 1
    analyze(store, ears, audios, replace(fast_options, jobs=3))
    assert len(started) == 1, "nothing is left to do"
    analyze(store, replace(ears, description="2"), audios, replace(fast_options, jobs=3))
    assert len(started) == 4


def test_a_lost_audio_is_one_error(
    store: Store, audios: dict[str, Path], fast_options: EvaluationOptions
) -> None:
    list(audios.values())[2].unlink()
    ears = find_recognizer("pocketsphinx", "en-us", fast_options)
    with pytest.raises(EvaluationError, match=r"recognizer 'pocketsphinx': cannot read audio"):
        analyze(store, ears, audios, fast_options)


def _length(settings: Mapping[str, str] | None) -> Measure:
    """Return the measure that the made-up worker has."""

    def refuse(_: object) -> Any:
        raise AssertionError("only workers open a measure")

    return Measure(name="length", settings=lambda _: settings, open=refuse)


def test_a_measure_has_settings_and_finds_a_value_of_each_audio(
    store: Store, audios: dict[str, Path], fast_options: EvaluationOptions
) -> None:
    """Values that other settings gave are not taken over."""
    found = find_analyzer(_length({"unit": "samples"}), fast_options)
    assert found is not None
    values = analyze(store, found, audios, fast_options)
    assert sorted(values.values()) == [4000, 4400, 4800, 5200, 5600]
    other = find_analyzer(_length({"unit": "milliseconds"}), fast_options)
    assert other is not None
    assert sorted(analyze(store, other, audios, fast_options).values())[0] == 250
    assert find_analyzer(_length(None), fast_options) is None
