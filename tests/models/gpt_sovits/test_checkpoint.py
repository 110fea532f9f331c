"""Files of torch's format are read whatever they begin with, and nothing in them is executed."""

import io
import os
import pathlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.models.gpt_sovits.conftest import HEADERS
from tts_compress.errors import ModelError
from tts_compress.models.gpt_sovits.checkpoint import (
    T2S_SYMBOLS,
    VERSIONS,
    is_t2s,
    read_sovits,
    read_t2s,
    read_torch_file,
    write_checkpoint,
)

torch = pytest.importorskip("torch")


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)
_HEADERS = [b"PK", b"05"]
_EVERY_EXAMPLE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30
)


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


_EVERY_DAMAGE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150
)


def _as_upstream(path: Path) -> Any:
    """Read a file as upstream does: `PK` in the first two places, in an interpreter without us."""
    return torch.load(io.BytesIO(b"PK" + path.read_bytes()[2:]), weights_only=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_read(
    write_model: Callable[..., tuple[Path, Path]],
    sovits_tensors: Callable[..., dict[str, Any]],
    version: str,
) -> None:
    t2s, sovits = write_model(version)
    found = read_sovits(sovits)
    wanted = sovits_tensors(version)
    assert (found.version, found.lora_rank) == (version, None)
    assert found.tensors.keys() == wanted.keys()
    assert all(torch.equal(found.tensors[name], wanted[name]) for name in wanted)
    assert {tensor.dtype for tensor in found.tensors.values()} == {torch.float16}
    assert found.config["data"]["hop_length"] == 640
    symbols = read_t2s(t2s).tensors[T2S_SYMBOLS].shape[0]
    assert symbols == (512 if version == "v1" else 732)
    assert (is_t2s(t2s), is_t2s(sovits)) == (True, False)


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_written_synthesizer_is_as_upstreams(
    tmp_path: Path, write_model: Callable[..., tuple[Path, Path]], version: str
) -> None:
    found = read_sovits(write_model(version)[1])
    encoder = {"enc_q.pre.weight": torch.full((2, 2), float("nan"))}
    full = {name: tensor.float() for name, tensor in found.tensors.items()} | encoder
    header = VERSIONS[version].header
    assert header is not None
    write_checkpoint(tmp_path / "out.pth", full, found.config, header=header)
    content = _as_upstream(tmp_path / "out.pth")
    assert content.keys() == {"weight", "config", "info"}
    assert content["weight"].keys() == found.tensors.keys()  # none that only training needs
    assert content["config"]["model"]["version"] == version
    assert read_sovits(tmp_path / "out.pth").version == version
    assert (tmp_path / "out.pth").read_bytes()[:4] == HEADERS[version] + b"\x03\x04"
    for name, tensor in content["weight"].items():
        assert tensor.dtype == torch.float16
        assert torch.equal(tensor, found.tensors[name])


def test_written_t2s_is_as_upstreams(
    tmp_path: Path, write_model: Callable[..., tuple[Path, Path]]
) -> None:
    found = read_t2s(write_model()[0])
    write_checkpoint(tmp_path / "out.ckpt", found.tensors, found.config)
    content = _as_upstream(tmp_path / "out.ckpt")
    assert content["config"] == found.config
    assert content["info"] == "converted by tts-compress"
    assert content["weight"]["model.bert_proj.weight"].dtype == torch.float16
    assert read_t2s(tmp_path / "out.ckpt").tensors.keys() == found.tensors.keys()


def test_small_part_of_a_large_tensor_is_written_alone(
    tmp_path: Path, write_model: Callable[..., tuple[Path, Path]]
) -> None:
    """Torch saves what a view is of."""
    found = read_t2s(write_model()[0])
    views = found.tensors | {"model.view": torch.zeros(10_000_000).half()[:2]}
    write_checkpoint(tmp_path / "out.ckpt", views, found.config)
    assert (tmp_path / "out.ckpt").stat().st_size < 100_000


def test_marks_of_v1_and_v2_give_way_to_the_tensors(
    write_model: Callable[..., tuple[Path, Path]],
) -> None:
    """Upstream does the same and continues by the number of symbols."""
    for version, mark in (("v1", b"01"), ("v2", b"00")):
        path = write_model(version)[1]
        path.write_bytes(mark + path.read_bytes()[2:])
        assert read_sovits(path).version == version


def test_settings_object_of_upstream_is_read(
    tmp_path: Path,
    save_official: Callable[..., Path],
    hparams: Callable[..., Any],
    sovits_tensors: Callable[..., dict[str, Any]],
    sovits_config: dict[str, Any],
) -> None:
    content = {"weight": sovits_tensors("v2"), "config": hparams(sovits_config), "info": "x"}
    path = save_official(tmp_path / "a.pth", content)
    assert read_sovits(path).config == sovits_config
    found = read_sovits(path)
    write_checkpoint(tmp_path / "b.pth", found.tensors, found.config)
    assert _as_upstream(tmp_path / "b.pth")["config"] == sovits_config


def test_what_fp16_cannot_hold_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'bridge\.0\.weight' is too large for FP16"):
        write_checkpoint(tmp_path / "out.pth", {"bridge.0.weight": torch.tensor([7e4])}, {})
    assert not (tmp_path / "out.pth").exists()


def test_same_content_gives_same_bytes(tmp_path: Path) -> None:
    for name in ("a.pth", "another-name.pth"):
        write_checkpoint(tmp_path / name, {"w": torch.arange(9.0)}, {}, header=b"05")
    assert (tmp_path / "a.pth").read_bytes() == (tmp_path / "another-name.pth").read_bytes()


def test_changes_by_lora_are_read(
    tmp_path: Path,
    save_official: Callable[..., Path],
    lora_tensors: Callable[..., dict[str, Any]],
    sovits_config: dict[str, Any],
) -> None:
    content = {"weight": lora_tensors(4), "config": sovits_config, "lora_rank": 4}
    for header, version in ((b"03", "v3"), (b"04", "v4")):
        found = read_sovits(save_official(tmp_path / "a.pth", content, header))
        assert (found.version, found.lora_rank) == (version, 4)
    for header, rank in ((b"PK", 4), (b"03", None), (b"03", "4"), (b"03", 0), (b"02", 4)):
        spoiled = content | {"lora_rank": rank}
        with pytest.raises(ModelError, match="states the LoRA rank"):
            read_sovits(save_official(tmp_path / "a.pth", spoiled, header))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": None}, "no section 'weight' with tensors"),
        ({"weight": {}}, "no section 'weight' with tensors"),
        ({"weight": {"a": 3}}, "weight 'a' is no tensor"),
        ({"weight": {"a": torch.eye(3).to_sparse()}}, "weight 'a' is no tensor"),
        ({"config": None}, "no section 'config'"),
        ({"config": {"model": {}, "data": {}, "train": 3}}, "have no section 'train'"),
        (
            {"config": {"model": {"a": torch.eye(2)}, "data": {}, "train": {}}},
            "settings are no plain data: .*Tensor",
        ),
    ],
)
def test_malformed_sections_are_refused(
    tmp_path: Path,
    save_official: Callable[..., Path],
    sovits_tensors: Callable[..., dict[str, Any]],
    sovits_config: dict[str, Any],
    change: dict[str, Any],
    message: str,
) -> None:
    content = {"weight": sovits_tensors("v2"), "config": sovits_config} | change
    with pytest.raises(ModelError, match=rf"a\.pth.*{message}"):
        read_sovits(save_official(tmp_path / "a.pth", content))


def test_files_in_each_others_place_are_refused(
    write_model: Callable[..., tuple[Path, Path]],
) -> None:
    t2s, sovits = write_model()
    with pytest.raises(ModelError, match="holds no weights of a T2S model"):
        read_t2s(sovits)
    with pytest.raises(ModelError, match="its settings have no section 'train'"):
        read_sovits(t2s)


@pytest.mark.parametrize("share", [0.01, 0.999])
def test_truncated_file_is_refused(
    write_model: Callable[..., tuple[Path, Path]], share: float
) -> None:
    for path, read in zip(write_model("v2Pro"), (read_t2s, read_sovits), strict=True):
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(ModelError, match=path.name):
            read(path)


@pytest.mark.slow
@_EVERY_DAMAGE
@given(st.data())
def test_damage_is_refused_or_leaves_a_model(
    write_model: Callable[..., tuple[Path, Path]], data: st.DataObject
) -> None:
    t2s, sovits = write_model(data.draw(st.sampled_from(["v2", "v3"])))
    readers: list[tuple[Path, Callable[..., Any]]] = [(t2s, read_t2s), (sovits, read_sovits)]
    path, read = data.draw(st.sampled_from(readers))
    content = bytearray(path.read_bytes())
    # The pickle stands at the beginning and the archive's list of contents at the end.
    edge = st.integers(0, 3_000) | st.integers(len(content) - 3_000, len(content) - 1)
    for at in data.draw(st.lists(edge, min_size=1, max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        found = read(path)
    except ModelError as error:
        assert path.name in str(error)  # noqa: PT017  either is right
    else:
        assert all(isinstance(t, torch.Tensor) for t in found.tensors.values())
