"""Checkpoints are read without running them, and fill the modules they belong to."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.errors import ModelError

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from tts_compress.models.naturalspeech2.weights import fill, read_weights  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("ran",)


def _module() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_a_module_without_memory_gets_a_checkpoints_tensors(tmp_path: Path, name: str) -> None:
    from safetensors.torch import save_file

    module, path = _module(), tmp_path / name
    state = {key: value.double() if value.ndim else value for key, value in _state(module).items()}
    if name.endswith("bin"):
        torch.save(state, path)
    else:
        save_file(state, path)
    with torch.device("meta"):
        empty = _module()
    fill(empty, read_weights(path), path)
    for key, value in _state(empty).items():
        assert value.equal(_state(module)[key])
        assert value.dtype == _state(module)[key].dtype


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    module, path = _module(), tmp_path / "x.bin"
    good = _state(module)
    wrong = {
        "1 tensors are missing, such as '0.bias'": {k: good[k] for k in good if k != "0.bias"},
        "1 tensors are not the model's, such as 'other'": good | {"other": good["0.bias"]},
        "1 tensors have other shapes, such as '0.bias'": good | {"0.bias": torch.zeros(3)},
        "'0.bias' has values that are not finite": good | {"0.bias": good["0.bias"] / 0},
    }
    for message, state in wrong.items():
        with pytest.raises(ModelError, match=message):
            fill(_module(), state, path)


@pytest.mark.parametrize(
    "content", [[1, 2], {}, {"a": 1}, {1: torch.zeros(1)}, torch.zeros(1), {"a": _Bomb()}]
)
def test_what_is_no_state_dict_is_refused(
    tmp_path: Path, content: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(content, path)
    with pytest.raises(ModelError, match="no checkpoint that is safe to read"):
        read_weights(path)
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"PK", pickle.dumps(_Bomb(), 2), b"x" * 100])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelError, match="no checkpoint that is safe to read"):
        read_weights(path)


def _state(module: Any) -> dict[str, Any]:
    return dict(module.state_dict())
