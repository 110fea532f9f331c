"""The process that makes one contestant's files, timed.

Its arguments are ``KIND NAME VOICE FOLDER``, and for a bare graph the ``.npz`` of its inputs.
"""

import json
import os
import sys
from pathlib import Path
from time import perf_counter

from tts_compress.errors import TTSCompressError, first_line
from tts_compress.processes import peak_bytes

_CORES = 2


def _make(kind: str, name: str, voice: Path, output: Path, calibration: Path | None) -> None:
    if kind == "peer":
        from benchmarks.peers import make_peer

        make_peer(name, voice, output, calibration)
        return
    from tts_compress.compression import compress
    from tts_compress.recipes.recipe import find_recipe

    scheme, _, quality = name.partition("@")
    model = voice if calibration is None else f"onnx:{voice}"
    used = calibration if calibration and find_recipe("onnx", scheme).calibration else None
    compress(model, scheme, calibration=used, quality=quality or None).save(output)


def main(arguments: list[str]) -> None:
    """Make the file; the last line of standard output holds its cost, or why it failed."""
    kind, name, voice, output, *feeds = arguments
    calibration = Path(feeds[0]) if feeds else None
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_CORES])
    start = perf_counter()
    try:
        _make(kind, name, Path(voice), Path(output), calibration)
    except Exception as error:
        ours = isinstance(error, TTSCompressError)
        print(
            json.dumps({"error": ("" if ours else f"{type(error).__name__}: ") + first_line(error)})
        )
        return
    cost = {"seconds": perf_counter() - start, "peak_bytes": peak_bytes(), "cores": _CORES}
    print(json.dumps(cost))


if __name__ == "__main__":
    main(sys.argv[1:])
