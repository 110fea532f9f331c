"""Moonshine, with the trained model in its wheel."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tts_compress.audio import Audio
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.recognizers import Recognizer, open_recognizer


@pytest.fixture(scope="module")
def moonshine() -> Recognizer:
    pytest.importorskip("moonshine_voice")
    return open_recognizer("moonshine", "en-us")


def test_a_reader_is_understood(moonshine: Recognizer, recordings: Sequence[Audio]) -> None:
    """Word for word; the embedded recognizer mistakes some of these."""
    assert moonshine.transcribe(recordings[0]) == "In being comparatively modern."


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
