"""Checkpoints are read without running them, and fill the modules they belong to."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tts_compress.errors import ModelError

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from tts_compress.models.naturalspeech2.network import fill, find_tables  # noqa: E402


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
    fill(empty, path)
    for key, value in _state(empty).items():
        assert value.equal(_state(module)[key])
        assert value.dtype == _state(module)[key].dtype


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    module, path = _module(), tmp_path / "x.bin"
    good = _state(module)
    wrong = {
        'settings: .*Missing key.*"0.bias"': {k: good[k] for k in good if k != "0.bias"},
        'settings: .*Unexpected key.*"other"': good | {"other": good["0.bias"]},
        "settings: .*size mismatch for 0.bias": good | {"0.bias": torch.zeros(3)},
        "settings: '0.bias' is of type torch.int64": good | {"0.bias": torch.zeros(2).long()},
        "'0.bias' has values that are not finite": good | {"0.bias": good["0.bias"] / 0},
    }
    for message, state in wrong.items():
        torch.save(state, path)
        with pytest.raises(ModelError, match=message):
            fill(_module(), path)


def _state(module: Any) -> dict[str, Any]:
    return dict(module.state_dict())


class EuclideanCodebook(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Has what encodec's has, under its name."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("embed", torch.randn(4, 2))
        self.register_buffer("embed_avg", torch.randn(4, 2))
        self.register_buffer("cluster_size", torch.randn(4))


class PositionalEncoding(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Has what Amphion's has, under its name."""

    def __init__(self, width: int, dropout: float, max_len: int = 7) -> None:
        super().__init__()
        self.dropout = dropout
        self.register_buffer("pe", torch.arange(max_len * width).view(max_len, 1, width).sin())


def _root() -> Any:
    torch.manual_seed(0)
    parts = [EuclideanCodebook(), PositionalEncoding(2, 0.1), PositionalEncoding(4, 0.1, 5)]
    return torch.nn.ModuleList([*parts, torch.nn.BatchNorm1d(2), PositionalEncoding(2, 0.1)])


def _fill(root: Any, stored: Collection[str]) -> None:
    for table in find_tables(root):
        if f"{table.path}.{table.name}" not in stored:
            table.fill()


def test_what_is_dropped_is_made_again() -> None:
    root = _root()
    before = {name: tensor.clone() for name, tensor in root.state_dict().items()}
    with torch.no_grad():
        root[2].pe.add_(1)  # somebody's own
    for table in find_tables(root):
        table.drop()
    kept = set(root.state_dict())
    assert set(before) - kept == {"0.embed_avg", "0.cluster_size", "1.pe", "4.pe"}
    assert root[1].pe.equal(before["1.pe"])

    with torch.device("meta"):
        empty = _root()
    _fill(empty, kept)
    assert empty[1].pe.equal(before["1.pe"])
    assert empty[4].pe is empty[1].pe  # of full size it takes ten megabytes
    assert empty[2].pe.is_meta  # the file holds it
    assert empty[0].embed.is_meta
    assert set(empty.state_dict()) == kept
    for module in (root, empty):
        assert module[0].embed_avg.shape == (4, 2)
        assert module[0].embed_avg.untyped_storage().nbytes() == 4
        assert not module[0].cluster_size.any()


def test_tables_of_a_file_that_holds_all_stay() -> None:
    root = _root()
    names = list(root.state_dict())
    _fill(root, names)
    assert list(root.state_dict()) == names
