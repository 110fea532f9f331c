"""A GPT-SoVITS model speaks several languages, unless its options state one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tts_compress.errors import ModelError
from tts_compress.models.base import Speaking

pytest.importorskip("torch")

if TYPE_CHECKING:
    from tts_compress.models.gpt_sovits.model import GptSovitsModel


@pytest.fixture
def open_model(write_model: Callable[..., tuple[Path, Path]]) -> Callable[..., GptSovitsModel]:
    """Return a function that opens a model by its two files, with options."""
    from tts_compress.models.gpt_sovits.model import GptSovitsModel

    def open_it(version: str, options: str = "") -> GptSovitsModel:
        t2s, sovits = write_model(version)
        return GptSovitsModel.open(f"{t2s},{sovits}{options}", "gpt-sovits:x")

    return open_it


@pytest.mark.parametrize(
    ("version", "options", "languages"),
    [
        ("v1", "", ("zh", "en", "ja")),
        ("v2", "", ("zh", "en", "ja", "ko", "yue")),
        ("v2Pro", "?top_k=5", ("zh", "en", "ja", "ko", "yue")),
        ("v2", "?text_lang=auto_yue", ("en", "ja", "ko", "yue")),
        ("v2", "?text_lang=en", ("en",)),
        ("v2", "?text_lang=all_zh", ("zh",)),
    ],
)
def test_languages_are_those_of_the_version_or_the_chosen_one(
    open_model: Callable[..., GptSovitsModel],
    version: str,
    options: str,
    languages: tuple[str, ...],
) -> None:
    model = open_model(version, options)
    assert model.speaking.languages == languages
    assert model.speaking.language == (languages[0] if len(languages) == 1 else None)


def test_a_language_is_chosen_as_upstreams_setting(
    open_model: Callable[..., GptSovitsModel],
) -> None:
    """One that was chosen before stays, also as a choice with other rules for foreign letters."""
    model = open_model("v2", "?top_k=5&prompt_lang=ja")
    chosen = model.speaking_as(Speaking(languages=("zh",)))
    assert (chosen.options.text_lang, chosen.options.top_k) == ("zh", 5)
    assert chosen.describe()["language"] == "zh"
    assert chosen.describe()["options"] == "prompt_lang ja, top_k 5"
    assert model.options.text_lang == "auto"
    assert (
        open_model("v2", "?text_lang=all_zh")
        .speaking_as(Speaking(languages=("zh",)))
        .options.text_lang
        == "all_zh"
    )
    for other, language in ((model, "de"), (chosen, "en"), (open_model("v1"), "ko")):
        with pytest.raises(ModelError, match=f"does not speak '{language}'; accepted: "):
            other.speaking_as(Speaking(languages=(language,)))
