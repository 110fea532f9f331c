"""Files of settings, weights and recordings, whole and damaged."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress.errors import ModelError
from tts_compress.models.base import Prompt
from tts_compress.models.files import (
    REFERENCE,
    REFERENCE_TEXT,
    check_duration,
    check_finite,
    find_prompt,
    read_json,
    read_tensors,
    read_yaml,
)

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")


_DEEP = b"[" * 1_000
_RATE = 8000


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("ran",)


def test_what_a_file_says_is_returned(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "file"
    path.write_text('{"a": [1, "ü", null]}', encoding="utf-8")
    assert read_json(path) == read_yaml(path) == {"a": [1, "ü", None]}
    path.write_text("a: 1e-3\nb: [x]", encoding="utf-8")
    assert read_yaml(path) == {"a": "1e-3", "b": ["x"]}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", _DEEP], ids=len)
def test_damaged_json_is_one_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"cannot read '.*config\.json': ."):
        read_json(path)
    with pytest.raises(ModelError, match=r"cannot read '.*absent\.json'.*No such file"):
        read_json(tmp_path / "absent.json")


@pytest.mark.parametrize(
    "content",
    [b"a: [", b"\xff\xfe\xfa", b"a: 2020-99-99", b"a: !!python/object/apply:os.getcwd []", _DEEP],
    ids=len,
)
def test_damaged_yaml_is_one_error_in_one_line(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"cannot read '.*config\.yaml': .") as caught:
        read_yaml(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_value_that_is_not_finite_is_named(value: float) -> None:
    weights = {"whole": torch.ones(2, dtype=torch.int64), "fine": torch.ones(2, 3)}
    check_finite(weights.items(), "a.safetensors")
    broken = torch.ones(2, 3).half()
    broken[1, 2] = value
    with pytest.raises(ModelError, match=r"'a\.safetensors': weight 'broken' has values that are"):
        check_finite((weights | {"broken": broken}).items(), "a.safetensors")


@pytest.mark.parametrize(
    "content", [[1, 2], {}, {"a": 1}, {1: torch.zeros(1)}, torch.zeros(1), {"a": _Bomb()}]
)
def test_what_is_no_state_dict_is_refused(
    tmp_path: Path, content: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(content, path)
    with pytest.raises(ModelError, match="no checkpoint that is safe to read"):
        read_tensors(path)
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"PK", pickle.dumps(_Bomb(), 2), b"x" * 100])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelError, match="no checkpoint that is safe to read"):
        read_tensors(path)


def _record(path: Path, seconds: float) -> Path:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(path, np.zeros(int(seconds * _RATE), np.float32), _RATE)
    return path


def test_a_recording_is_found_with_what_is_said_in_it(tmp_path: Path) -> None:
    text = tmp_path / REFERENCE_TEXT
    text.write_text("  one two.\n", encoding="utf-8")
    assert find_prompt(tmp_path) == Prompt()  # not stated anywhere
    audio = _record(tmp_path / REFERENCE, 0.1)
    assert find_prompt(tmp_path) == Prompt(audio=audio, text="one two.")
    text.write_text(" \n", encoding="utf-8")
    assert find_prompt(tmp_path) == Prompt(audio=audio)
    text.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ModelError, match=r"cannot read '.*reference\.txt'"):
        find_prompt(tmp_path)
    text.unlink()
    assert find_prompt(tmp_path) == Prompt(audio=audio)


def test_a_recording_must_have_a_length_that_the_system_takes(tmp_path: Path) -> None:
    path = tmp_path / "r.wav"
    for seconds in (1.0, 2.5):
        check_duration(_record(path, seconds), (1, 2.5))
    for seconds in (0.9, 2.6):
        with pytest.raises(ModelError, match=rf"is {seconds} s long; give .* of 1 to 2\.5 s"):
            check_duration(_record(path, seconds), (1, 2.5))


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    text = tmp_path / "text.wav"
    text.write_text("no sound")
    for path in (text, tmp_path, tmp_path / "absent.wav"):
        with pytest.raises(ModelError, match="cannot read audio from"):
            check_duration(path, (1, 2))


@pytest.mark.parametrize("is_zipped", [True, False])
def test_an_error_of_a_checkpoint_comes_without_warnings(tmp_path: Path, is_zipped: bool) -> None:
    """Torch speaks of protocols and of what it will remove; the error says what is wrong."""
    path = tmp_path / "voice.ckpt"
    zipped = {"_use_new_zipfile_serialization": is_zipped}
    torch.save({"weight": torch.ones(3), "date": _Bomb()}, path, pickle_protocol=4, **zipped)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(ModelError, match="no checkpoint that is safe to read"):
            read_tensors(path)
    assert not said
