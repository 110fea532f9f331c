"""The process that runs one file; its requests are the methods of `_Host`."""

import sys
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from tts_compress.onnx.session import open_session
from tts_compress.processes import Answer, peak_bytes, serve


class _Host:
    """Runs a voice: one graph on inputs, or all that speaks a text, as it was opened for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._session: Any = None
        self._runtime: Any = None

    def open(self, threads: int, speaks: bool) -> Answer:
        """Open it."""
        if speaks:
            from tts_compress.models import load

            voice: Any = load(self._path)
            self._runtime = voice.open_runtime(threads=threads)
        else:
            self._session = open_session(self._path, self._path.name, threads)
        return {}

    def run(self, feeds: dict[str, tuple[str, Any]]) -> Answer:
        """Run the graph; each input is a dtype and values."""
        inputs = {name: np.array(values, kind) for name, (kind, values) in feeds.items()}
        start = perf_counter()
        audio = self._session.run(None, inputs)[0]
        return {"ms": (perf_counter() - start) * 1e3, "samples": int(audio.size)}

    def speak(self, text: str) -> Answer:
        """Speak a text."""
        start = perf_counter()
        audio = self._runtime.speak(text)
        return {"ms": (perf_counter() - start) * 1e3, "samples": int(audio.samples.size)}

    def peak(self) -> Answer:
        """Return the largest memory so far."""
        return {"peak_bytes": peak_bytes()}


if __name__ == "__main__":
    serve(partial(_Host, Path(sys.argv[-1])))
