"""Texts to tokens by the official tokenizers."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from tts_compress.errors import MissingExtraError, ModelError, TextError, model_errors
from tts_compress.models.base import check_text
from tts_compress.models.pretrained import quiet

_EXTRA = "transformers-tts"


def read_tokenizer(directory: Path) -> Any:
    """Return the official tokenizer of a voice's folder.

    Raises:
        ModelError: It cannot be read.
        MissingExtraError: A package that it needs is not installed.
    """
    import transformers

    with model_errors(f"no tokenizer can be read from '{directory}'"), _packages(), quiet():
        return transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)


def tokenize(
    tokenizer: Any, text: str, rows: int, longest: int, **options: Any
) -> dict[str, Tensor]:
    """Return the official model's inputs for a text.

    Args:
        tokenizer: The official tokenizer.
        text: The text.
        rows: Rows of the model's embedding.
        longest: Most tokens of a text.
        options: Options of the tokenizer.

    Raises:
        TextError: The text is empty, has nothing that the voice can speak, or is too long.
        ModelError: The tokenizer fails, or knows tokens that the model does not.
        MissingExtraError: A package that it needs is not installed.
    """
    check_text(text)
    _require_romanizer(tokenizer, text)
    with model_errors(f"the tokenizer cannot read {text[:40]!r}"), _packages(), quiet():
        inputs = dict(tokenizer(text, return_tensors="pt", **options))
    ids = inputs["input_ids"]
    if not 0 < ids.shape[1] <= longest:
        raise TextError(
            f"{text[:40]!r}… has {ids.shape[1]} tokens; give a text of 1 to {longest}"
            if ids.shape[1]
            else f"the voice knows no symbol of {text[:40]!r}; give a text of its language"
        )
    if (highest := int(ids.max())) < rows:
        return inputs
    unknown = ids[0, ids[0].argmax()].item() == getattr(tokenizer, "unk_token_id", None)
    if unknown:
        raise TextError(f"{text[:40]!r} holds symbols that the voice does not know; leave them out")
    raise ModelError(
        f"the tokenizer gives token {highest}, and the model knows {rows}; "
        "give the files that belong together"
    )


@contextmanager
def _packages() -> Iterator[None]:
    """Name the package that transformers asks for, in pages of advice."""
    try:
        yield
    except ImportError as error:
        named = re.search(r"requires the (\S+) library", str(error))
        raise MissingExtraError(named[1] if named else error.name or "?", _EXTRA) from error


def _require_romanizer(tokenizer: Any, text: str) -> None:
    """Refuse a text that transformers would leave half out, with a remark, without a package."""
    if text.isascii() or not getattr(tokenizer, "is_uroman", False):
        return
    try:
        import uroman  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("uroman", _EXTRA) from error
