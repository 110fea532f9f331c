"""The log of a training: JSON lines, and TensorBoard files where its package is installed."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from tts_compress.errors import ArtifactError
from tts_compress.reading import read_text

LOG_NAME = "log.jsonl"
_BOARD = "tensorboard"


class RunLog:
    """Appends to the log of a training.

    Args:
        folder: Folder of the log; None keeps none.
        first_step: Events of later updates, which a killed run left, are dropped: they are about
            to happen again.
    """

    def __init__(self, folder: Path | None, first_step: int = 0) -> None:
        self._path = None if folder is None else folder / LOG_NAME
        self._board: Any = None
        if folder is None or self._path is None:
            return
        kept = [line for line in read_log(folder) if line.get("step", 0) <= first_step]
        lines = kept if first_step else []
        self._path.write_text("".join(map(_line, lines)), encoding="utf-8")
        with suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / _BOARD), purge_step=first_step)

    def add(self, event: str, **values: Any) -> None:
        """Append an event; the numbers of one that has a `step` become curves."""
        if self._path is None:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line({"event": event, **values}))
        if self._board is None or "step" not in values:
            return
        for name, value in values.items():
            if isinstance(value, float):
                self._board.add_scalar(f"{event}/{name}", value, values["step"])

    def close(self) -> None:
        """Write what is still in memory."""
        if self._board is not None:
            self._board.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a training, up to the line that a killed run did not finish.

    Raises:
        ArtifactError: There is a log that cannot be read.
    """
    path = folder / LOG_NAME
    if not path.is_file():
        return []
    found: list[dict[str, Any]] = []
    try:
        lines = read_text(path).splitlines()
    except (OSError, ValueError) as error:
        raise ArtifactError(f"cannot read '{path}': {error}") from error
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def _line(event: dict[str, Any]) -> str:
    return json.dumps(event, ensure_ascii=False) + "\n"
