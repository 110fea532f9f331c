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

    from tts_compress.models.base import Runtime


class _Host:
    """Runs a voice: one graph on inputs, or all that speaks a text, as it was opened for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._session: onnxruntime.InferenceSession | None = None
        self._runtime: Runtime | None = None

    def open(self, threads: int, speaks: bool) -> dict[str, Any]:
        if not speaks:
            idle = resident_bytes()
            self._session = open_session(self._path, self._path.name, threads)
            return {"idle_bytes": idle}
        from tts_compress.models import load
        from tts_compress.models.base import TTSModel

        idle = resident_bytes()
        voice = load(self._path)
        assert isinstance(voice, TTSModel)
        self._runtime = voice.open_runtime(threads=threads)
        return {"idle_bytes": idle}

    def run(self, feeds: dict[str, tuple[str, Any]]) -> dict[str, Any]:
        assert self._session is not None, "open comes first"
        given = {name: np.array(values, kind) for name, (kind, values) in feeds.items()}
        start = perf_counter()
        audio = self._session.run(None, given)[0]
        return {"ms": (perf_counter() - start) * 1e3, "samples": int(audio.size)}

    def speak(self, text: str) -> dict[str, Any]:
        assert self._runtime is not None, "open comes first"
        start = perf_counter()
        audio = self._runtime.speak(text)
        return {"ms": (perf_counter() - start) * 1e3, "samples": int(audio.samples.size)}

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
