"""Silence for remarks of transformers, and of what it imports, about their own defaults."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Keep bars, remarks and warnings of other packages from standard error in the block."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # no errors
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import transformers

            bars = transformers.logging.is_progress_bar_enabled()
            transformers.logging.disable_progress_bar()
            try:
                yield
            finally:
                if bars:
                    transformers.logging.enable_progress_bar()
    finally:
        logging.disable(before)
