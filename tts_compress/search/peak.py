"""The program that runs a graph in a process of its own and prints its peak memory in bytes."""

import resource
import sys
from pathlib import Path

import numpy as np

from tts_compress.onnx.session import Feeds, open_session


def main(arguments: list[str]) -> None:
    """Open the graph in the first file and run it on the arrays `<call>/<input>` in the second."""
    session = open_session(Path(arguments[0]), arguments[0], 1)
    names = {value.name for value in session.get_inputs()}
    calls: dict[str, Feeds] = {}
    with np.load(arguments[1]) as arrays:
        for key in arrays.files:
            call, _, name = key.partition("/")
            if name in names:
                calls.setdefault(call, {})[name] = arrays[key]
    for feeds in calls.values():
        session.run(None, feeds)
    print(_peak_bytes())


def _peak_bytes() -> int:
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        # The system's other account of a process begins with the memory of the one that started it.
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main(sys.argv[1:])
