"""What training needs of the machine: packages, and which of several processes this one is."""

from __future__ import annotations

import os
from importlib.util import find_spec

from tts_compress.errors import MissingExtraError

__all__ = ["is_main_process", "require_packages"]


def is_main_process() -> bool:
    """Return whether this process is the one that writes and speaks.

    Launchers such as `torchrun` and `accelerate launch` number processes in `RANK`; without one
    there is only this.
    """
    return os.environ.get("RANK", "0") == "0"


def require_packages() -> None:
    """Check, before minutes of work, that what training needs is installed.

    Raises:
        MissingExtraError: torch, safetensors or accelerate is not.
    """
    for package in ("torch", "safetensors", "accelerate"):
        if find_spec(package) is None:
            raise MissingExtraError(package, "qat")
