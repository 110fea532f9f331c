"""Tables that are computed, or that only training reads, are not kept in files."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tts_compress.models.naturalspeech2.tables import compute_tables, drop_tables  # noqa: E402


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


def test_what_is_dropped_is_made_again() -> None:
    root = _root()
    before = {name: tensor.clone() for name, tensor in root.state_dict().items()}
    with torch.no_grad():
        root[2].pe.add_(1)  # somebody's own
    drop_tables(root)
    kept = set(root.state_dict())
    assert set(before) - kept == {"0.embed_avg", "0.cluster_size", "1.pe", "4.pe"}
    assert root[1].pe.equal(before["1.pe"])

    with torch.device("meta"):
        empty = _root()
    compute_tables(empty, kept)
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
    compute_tables(root, names)
    assert list(root.state_dict()) == names
