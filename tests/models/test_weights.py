"""Weights are read without running what is in their file; damaged ones are refused."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.errors import ModelError
from tts_compress.models.weights import check_finite, read_tensors

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

if TYPE_CHECKING:
    from pathlib import Path


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("ran",)


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
        read_tensors(path, "f5")
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"PK", pickle.dumps(_Bomb(), 2), b"x" * 100])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelError, match="no checkpoint that is safe to read"):
        read_tensors(path, "f5")
