"""Files of recognizers' models: told apart by content, or by the hub's revision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tts_compress.errors import EvaluationError
from tts_compress.evaluation.recognizers import find_folder, identify, model_files

if TYPE_CHECKING:
    from pathlib import Path


def _write(folder: Path, **contents: str) -> Path:
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name.replace("_", ".")).write_text(content, encoding="utf-8")
    return folder


def test_a_folder_with_a_model_is_found_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An artifact in a folder `small` is not the model of that name."""
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "small", manifest_json="{}")
    assert find_folder("small") is None
    assert find_folder("someone/small") is None
    model = _write(tmp_path / "mine", config_json="{}")
    assert find_folder("mine") == find_folder(str(model)) == find_folder("./mine") == model
    for path in ("./small", str(tmp_path / "small"), "a/b/c", "~/none"):
        with pytest.raises(EvaluationError, match=r"no folder .* with a model"):
            find_folder(path)


def test_what_decides_a_transcript_is_part_of_the_identity(tmp_path: Path) -> None:
    """The weights, the vocabulary and the settings; neither the place nor the documentation."""
    contents = {"config_json": "{}", "model_bin": "weights", "README_md": "words"}
    one = _write(tmp_path / "one", **contents)
    same = _write(tmp_path / "two", **contents | {"README_md": "other words"})
    found = {
        identify(model_files(_write(tmp_path / name, **contents | {name: "other"})))
        for name in ("config_json", "model_bin", "vocabulary_txt")
    }
    assert identify(model_files(one)) == identify(model_files(same))
    assert len(found | {identify(model_files(one))}) == 4


def test_a_model_of_the_hub_is_its_revision(tmp_path: Path) -> None:
    """Gigabytes need no hash where the hub has one."""
    root = tmp_path / "models--someone--small" / "snapshots"
    folder = _write(root / "0123456789abcdef", config_json="{}")
    assert identify(model_files(folder)) == "revision 0123456789ab"
    elsewhere = _write(tmp_path / "snapshots" / "0123456789abcdef", config_json="{}")
    assert identify(model_files(elsewhere)).startswith("files ")
