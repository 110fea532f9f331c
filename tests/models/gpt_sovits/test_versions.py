"""Marks, checksums, settings and tensors identify versions, never the size of a file."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tts_compress.errors import ModelError
from tts_compress.models.gpt_sovits.checkpoint import VERSIONS, read_mark, sovits_version

_FILE = Path("a.pth")
_V1 = {"enc_p.text_embedding.weight": (322, 192), "dec.conv_pre.weight": (512, 192, 7)}
_V2 = _V1 | {"enc_p.text_embedding.weight": (732, 192)}
_PRO = _V2 | {"sv_emb.weight": (1024, 20480)}
_PLUS = _PRO | {"dec.conv_pre.weight": (768, 192, 7)}
_FLOW_MATCHING = {
    "enc_p.text_embedding.weight": (732, 192),
    "cfm.estimator.proj_out.weight": (100, 1024),
}


@pytest.mark.parametrize(
    ("marked", "stated", "shapes", "version"),
    [
        (None, None, _V1, "v1"),
        (None, None, _V2, "v2"),
        (None, None, _PRO, "v2Pro"),
        (None, None, _PLUS, "v2ProPlus"),
        (None, None, _FLOW_MATCHING, "v3"),
        (None, "v4", _FLOW_MATCHING, "v4"),
        (None, "v2", _V1, "v1"),  # tensors go before what settings state
        (None, "v3", _V2, "v2"),
        (None, ["v4"], _FLOW_MATCHING, "v3"),
        (None, "v2ProPlus", _PRO, "v2ProPlus"),  # of other widths than the published
        ("v2Pro", "v2ProPlus", _PLUS, "v2Pro"),
        ("v4", "v3", _FLOW_MATCHING, "v4"),
        ("v3", "v4", _FLOW_MATCHING, "v3"),
        ("v2", "v2", _V1, "v1"),  # upstream takes the checksum of the first v1 for a v2's
        ("v1", None, _V2, "v2"),
    ],
)
def test_version_is_told(
    marked: str | None, stated: Any, shapes: dict[str, tuple[int, ...]], version: str
) -> None:
    assert sovits_version(_FILE, marked, stated, shapes) == version


@pytest.mark.parametrize(
    ("marked", "shapes", "message"),
    [
        ("v2Pro", _V2, "marked as v2Pro, and its tensors are of v2"),
        ("v3", _PRO, "marked as v3, and its tensors are of v2Pro"),
        ("v1", _FLOW_MATCHING, "marked as v1, and its tensors are of v3"),
        (None, {}, r"'a\.pth' holds no weights of a SoVITS model"),
        (None, {"model.bert_proj.weight": (512, 1024)}, "saved to SoVITS_weights"),
        (None, {"enc_p.text_embedding.weight": (732, 4)}, "holds no weights of a SoVITS model"),
        (None, _V1 | {"enc_p.text_embedding.weight": (256, 192)}, "256 symbols; those of v1"),
        (None, _V1 | {"enc_p.text_embedding.weight": ()}, "holds no weights of a SoVITS model"),
        (None, _PRO | {"dec.conv_pre.weight": ()}, "holds no weights of a SoVITS model"),
    ],
)
def test_tensors_of_something_else_are_refused(
    marked: str | None, shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        sovits_version(_FILE, marked, None, shapes)


def test_published_files_are_known_by_their_first_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published v4 is a plain archive whose tensors are as v3's."""
    content = b"PK\x03\x04" + bytes(20_000)
    digest = hashlib.md5(content[:8192], usedforsecurity=False).hexdigest()
    monkeypatch.setitem(VERSIONS, "v4", replace(VERSIONS["v4"], digest=digest))
    (tmp_path / "a.pth").write_bytes(content)
    assert read_mark(tmp_path / "a.pth") == ("v4", False)
    (tmp_path / "a.pth").write_bytes(content[:100] + b"x" + content[101:])
    assert read_mark(tmp_path / "a.pth") == (None, False)


@pytest.mark.parametrize("content", [b"07..", b"GIF89", b"\x80\x02}"])
def test_other_first_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.pth").write_bytes(content)
    with pytest.raises(ModelError, match=r"a\.pth' begins with .*; a SoVITS model with one of"):
        read_mark(tmp_path / "a.pth")


@pytest.mark.parametrize(
    ("header", "version", "is_lora"),
    [
        (b"PK", None, False),
        (b"00", "v1", False),
        (b"01", "v2", False),
        (b"02", "v3", False),
        (b"03", "v3", True),
        (b"04", "v4", True),
        (b"05", "v2Pro", False),
        (b"06", "v2ProPlus", False),
    ],
)
def test_marks(tmp_path: Path, header: bytes, version: str | None, *, is_lora: bool) -> None:
    (tmp_path / "a.pth").write_bytes(header + b"\x03\x04")
    assert read_mark(tmp_path / "a.pth") == (version, is_lora)
