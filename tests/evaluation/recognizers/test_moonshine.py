"""Moonshine, with the trained model in its wheel."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tts_compress.audio import Audio
from tts_compress.errors import EvaluationError, MissingExtraError
from tts_compress.evaluation.recognizers import Recognizer, open_recognizer


@pytest.fixture(scope="module")
def moonshine() -> Recognizer:
    pytest.importorskip("moonshine_voice")
    return open_recognizer("moonshine", "en-us")


def test_a_reader_is_understood(moonshine: Recognizer, recordings: Sequence[Audio]) -> None:
    """Word for word; the embedded recognizer mistakes some of these."""
    assert moonshine.transcribe(recordings[0]) == "In being comparatively modern."
    assert moonshine.description.startswith("moonshine-voice 0.0.")
    assert "model tiny-en (files " in moonshine.description


def test_a_transcript_does_not_depend_on_what_was_heard_before(
    moonshine: Recognizer, recordings: Sequence[Audio], sounds: Sequence[Audio]
) -> None:
    """The library's own call for a whole sound hears "You" in the noise, behind other sounds."""
    some = [*recordings[:3], *sounds]
    first = [moonshine.transcribe(audio) for audio in some]
    again = open_recognizer("moonshine:tiny-en", "en-gb")
    assert first[::-1] == [again.transcribe(audio) for audio in some[::-1]]
    assert again.description == moonshine.description


def test_broken_audio_is_a_finding_not_a_crash(moonshine: Recognizer, broken: Audio) -> None:
    assert isinstance(moonshine.transcribe(broken), str)


def test_a_folder_is_known_by_its_name(
    moonshine: Recognizer, recordings: Sequence[Audio], tmp_path: Path
) -> None:
    """As the library's download leaves it; the language is at the end of the name."""
    from moonshine_voice import get_model_path

    folder = tmp_path / "tiny-de" / "quantized"
    shutil.copytree(get_model_path("tiny-en"), folder)
    other = open_recognizer(f"moonshine:{folder}", "de")
    assert other.transcribe(recordings[0]) == moonshine.transcribe(recordings[0])
    assert other.description == moonshine.description.replace("tiny-en", "tiny-de")
    (folder / "encoder_model.ort").write_bytes(b"no graph")
    with pytest.raises(EvaluationError, match=r"cannot open the model .* of 'moonshine'") as caught:
        open_recognizer(f"moonshine:{folder}", "de")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("", "'moonshine' does not know the suite's language 'de' .it knows en"),
        ("/no/such/folder", "no Moonshine model in '/no/such/folder'; give a folder"),
        ("gigantic", "no Moonshine model in 'gigantic'; give a folder"),
    ],
)
def test_what_it_does_not_have_is_one_line(model: str, message: str) -> None:
    pytest.importorskip("moonshine_voice")
    with pytest.raises(EvaluationError, match=message) as caught:
        open_recognizer(f"moonshine:{model}" if model else "moonshine", "de")
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moonshine_voice", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tts-compress\[moonshine\]'"):
        open_recognizer("moonshine", "en-us")
