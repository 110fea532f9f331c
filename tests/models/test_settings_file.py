"""Files of settings, whole and damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tts_compress.errors import MissingExtraError, ModelError
from tts_compress.models.packages import import_package
from tts_compress.models.settings_file import read_json, read_yaml

if TYPE_CHECKING:
    from pathlib import Path

_DEEP = b"[" * 100_000


def test_what_a_file_says_is_returned(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "file"
    path.write_text('{"a": [1, "ü", null]}', encoding="utf-8")
    assert read_json(path) == read_yaml(path, "f5") == {"a": [1, "ü", None]}
    path.write_text("a: 1e-3\nb: [x]", encoding="utf-8")
    assert read_yaml(path, "f5") == {"a": "1e-3", "b": ["x"]}


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
        read_yaml(path, "f5")
    assert "\n" not in str(caught.value)


def test_a_missing_package_names_the_extra_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outer_package.py").write_text("import inner_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=r"'inner_package' .*tts-compress\[f5\]"):
        import_package("outer_package", "f5")
