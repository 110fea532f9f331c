"""The process that runs one file: requests and replies are JSON lines, as in `Worker`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.memory import peak_bytes, resident_bytes
from tts_compress.onnx.session import open_session

if TYPE_CHECKING:
    import onnxruntime


class _Host:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._session: onnxruntime.InferenceSession | None = None

    def open(self, threads: int) -> dict[str, Any]:
        idle = resident_bytes()
        self._session = open_session(self._path, self._path.name, threads)
        return {"idle_bytes": idle}

    def speak(self, ids: list[int], scales: list[float]) -> dict[str, Any]:
        assert self._session is not None, "open comes first"
        feeds = {
            "input": np.array([ids], np.int64),
            "input_lengths": np.array([len(ids)], np.int64),
            "scales": np.array(scales, np.float32),
        }
        start = perf_counter()
        audio = self._session.run(None, feeds)[0]
        return {"ms": (perf_counter() - start) * 1e3, "samples": int(audio.size)}

    def peak(self) -> dict[str, Any]:
        return {"peak_bytes": peak_bytes()}


def main(arguments: list[str]) -> None:
    """Serve requests until standard input ends; the last argument is the file."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no reply
    host = _Host(Path(arguments[-1]))
    print(json.dumps({"ok": {}}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": getattr(host, request.pop("do"))(**request)}
        except Exception as error:
            answer = {"error": {"kind": "unknown", "message": str(error).strip().splitlines()[0]}}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
