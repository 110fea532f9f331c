"""An export whose texts cannot be spoken leaves nothing behind."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from tts_compress import export
from tts_compress.errors import TextError


def test_a_text_that_cannot_be_spoken_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole export was there, and the next try said that it exists."""

    def synthesize(text: str, *, seed: int) -> None:
        if "1" in text:
            raise TextError(f"{text!r} at {seed}")

    @contextmanager
    def recording(_: Any, folder: Path) -> Iterator[list[Path]]:
        yield [folder / "graph.npz"]
        (folder / "graph.npz").touch()

    family = SimpleNamespace(recording=recording, write_graphs=lambda _, folder: ([folder], {}))
    model: Any = SimpleNamespace(
        family="small", manifest=None, sample_rate=8000, synthesize=synthesize
    )
    monkeypatch.setitem(export._FAMILIES, "small", family)
    with pytest.raises(TextError, match="'text 1' at 1"):
        export.export(model, tmp_path / "out", texts=["text", "text 1"])
    assert not list(tmp_path.iterdir())
    export.export(model, tmp_path / "out", texts=["text"])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"graph.npz", "export.json"}
