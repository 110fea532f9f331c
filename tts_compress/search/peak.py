"""The program that runs a graph in a process of its own and prints its peak memory in bytes."""

import sys
from pathlib import Path

import numpy as np

from tts_compress.onnx.session import Feeds, open_session
from tts_compress.processes import peak_bytes


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
    print(peak_bytes())


if __name__ == "__main__":
    main(sys.argv[1:])
