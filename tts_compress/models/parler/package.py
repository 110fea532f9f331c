"""The packages Parler-TTS consists of, imported when a model is first needed."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tts_compress.errors import ModelError
from tts_compress.models.shims.stand_ins import offer_audiotools


def load_packages() -> tuple[Any, Any]:
    """Return the modules `parler_tts` and `transformers`."""
    import transformers

    _check_version(transformers.__version__)
    offer_audiotools()
    # The codec's command line, which is imported along, switches all user warnings off.
    with quiet(transformers), warnings.catch_warnings():
        import parler_tts
    return parler_tts, transformers


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Keep remarks of both packages about their own defaults from standard error, not errors."""
    logger = logging.getLogger("parler_tts")
    level, verbosity = logger.level, transformers.logging.get_verbosity()
    logger.setLevel(logging.ERROR)
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        logger.setLevel(level)
        transformers.logging.set_verbosity(verbosity)


def _check_version(version: str) -> None:
    major, minor = (int(part) for part in version.split(".")[:2])
    # Without DacModel before; from 4.50 a model no longer inherits `generate`'s machinery.
    if not (4, 45) <= (major, minor) < (4, 50):
        raise ModelError(
            f"transformers {version} is installed, and Parler-TTS runs with 4.45 to 4.49; in an "
            "environment of its own: pip install 'transformers==4.46.1'"
        )
