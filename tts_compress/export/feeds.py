"""Calibration calls of exported graphs: what the torch model gives its modules while it speaks."""

from __future__ import annotations

import os
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tts_compress.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from tts_compress.onnx.session import Feeds

__all__ = ["feeds_writer", "observed"]


@contextmanager
def feeds_writer(path: Path | str) -> Iterator[Callable[[Feeds], None]]:
    """Give what adds a call to an `.npz`, whose arrays are named `<call>/<input>`.

    Every call is written at once, so that as many can be recorded as the disk holds; the file
    appears when the block ends without error.

    Args:
        path: The file to write.

    Raises:
        ArtifactError: It cannot be written.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    count = 0
    try:
        with zipfile.ZipFile(partial, "w") as archive:

            def add(feeds: Feeds) -> None:
                nonlocal count
                for name, array in feeds.items():
                    with archive.open(f"{count}/{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
                count += 1

            yield add
        partial.replace(target)
    except OSError as error:
        raise ArtifactError(f"cannot write '{target}': {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def observed(module: nn.Module, method: str, see: Callable[..., None]) -> Iterator[None]:
    """Let a function see the arguments of a module's method before each call.

    Args:
        module: A live one; it is as before when the block ends.
        method: Such as `forward` or `decode`.
        see: Is called with what the method is called with.
    """
    official = getattr(module, method)
    had = module.__dict__.get(method)

    def call(*args: Any, **kwargs: Any) -> Any:
        see(*args, **kwargs)
        return official(*args, **kwargs)

    setattr(module, method, call)
    try:
        yield
    finally:
        delattr(module, method)
        if had is not None:
            setattr(module, method, had)
