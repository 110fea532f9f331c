"""Files of torch's format are read whatever they begin with, and nothing in them is executed."""

import os
import pathlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tts_compress.errors import ModelError
from tts_compress.models.gpt_sovits.checkpoint import read_torch_file

torch = pytest.importorskip("torch")


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)
_HEADERS = [b"PK", b"05"]
_EVERY_EXAMPLE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)


@pytest.mark.parametrize("header", [b"PK", b"02", b"06"])
def test_first_two_bytes_do_not_matter(
    tmp_path: Path, save_official: Callable[..., Path], header: bytes
) -> None:
    wanted = torch.arange(5_000.0)
    path = save_official(tmp_path / "a.pth", {"weight": {"w": wanted}}, header)
    found = read_torch_file(path)
    assert torch.equal(found["weight"]["w"], wanted)


def test_upstreams_settings_become_dictionaries(
    tmp_path: Path, save_official: Callable[..., Path], hparams: Callable[..., Any]
) -> None:
    values = {"train": {"betas": [0.8, 0.99]}, "model": {"gin": {"x": None}}, "name": "voice"}
    path = save_official(tmp_path / "a.pth", {"config": hparams(values)})
    assert b"utils" in path.read_bytes()  # it is pickled by upstream's name
    assert read_torch_file(path) == {"config": values}


def test_paths_of_either_system_become_text(
    tmp_path: Path, save_official: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training on Windows leaves objects that cannot be made elsewhere."""

    class WindowsPath:
        def __reduce__(self) -> tuple[Any, ...]:
            return WindowsPath, ("C:\\", "logs", "s1")

    WindowsPath.__module__, WindowsPath.__qualname__ = "pathlib", "WindowsPath"
    config = {"output_dir": pathlib.PosixPath("logs/s1"), "old": WindowsPath(), "pair": (1, 2)}
    with monkeypatch.context() as context:
        context.setattr(pathlib, "WindowsPath", WindowsPath)
        path = save_official(tmp_path / "a.ckpt", {"config": config})
    found = read_torch_file(path)["config"]
    assert found == {"output_dir": "logs/s1", "old": "C:/logs/s1", "pair": [1, 2]}


@_EVERY_EXAMPLE
@given(content=st.dictionaries(st.text(), _PLAIN, max_size=4), header=st.sampled_from(_HEADERS))
def test_plain_data_is_read_as_it_was_saved(
    tmp_path: Path, save_official: Callable[..., Path], content: dict[str, Any], header: bytes
) -> None:
    assert read_torch_file(save_official(tmp_path / "a.pth", content, header)) == content


class _Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


class _Posing:
    """A call of a function where settings are expected."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("__import__('os').mkdir('executed')",)


@pytest.mark.parametrize("header", [b"PK", b"03"])
@pytest.mark.parametrize("content", [_Hostile(), _Posing()])
def test_hostile_pickle_is_not_executed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    save_official: Callable[..., Path],
    header: bytes,
    content: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = save_official(tmp_path / "a.pth", {"weight": {}, "config": content}, header)
    with pytest.raises(ModelError, match=r"a\.pth' is no checkpoint that is safe to read"):
        read_torch_file(path)
    assert not (tmp_path / "executed").exists()


def test_settings_without_end_are_refused(
    tmp_path: Path, save_official: Callable[..., Path]
) -> None:
    """A pickle holds each object once, so few bytes can stand for more than any memory."""
    endless: dict[str, Any] = {}
    endless["again"] = endless
    laughs: list[Any] = ["ha"]
    for _ in range(12):
        laughs = [laughs] * 10
    for config in (endless, laughs):
        path = save_official(tmp_path / "a.pth", {"config": config})
        with pytest.raises(ModelError, match="'config' holds more than any settings"):
            read_torch_file(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (3, "it holds a int, not sections by name"),
        ([1], "it holds a list"),
        (OrderedDict(config={1, 2}), "section 'config' holds a set"),
        ({"config": b"bytes"}, "section 'config' holds a bytes"),
    ],
)
def test_what_is_no_plain_data_is_refused(
    tmp_path: Path, save_official: Callable[..., Path], content: Any, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        read_torch_file(save_official(tmp_path / "a.pth", content))


def test_missing_empty_and_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ModelError, match="empty' is empty"):
        read_torch_file(tmp_path / "empty")
    with pytest.raises(ModelError, match="none': No such file"):
        read_torch_file(tmp_path / "none")
    with pytest.raises(ModelError, match="Is a directory"):
        read_torch_file(tmp_path)


@_EVERY_EXAMPLE
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"a\.pth"):
        read_torch_file(path)
