"""Compares a Piper voice in stages with the unsplit one beside it, on the processor that runs this.

`python stitcher.py FOLDER [TEXTS]`: it needs numpy and onnxruntime only, and prints the texts (one
by default) and plans of chunks whose sound is not the whole's, bit for bit.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "stream"))

import numpy as np
import onnxruntime
import play  # type: ignore[import-not-found]  # of the folder above

_PLANS = ((9, 9), (5, 40), (70, 20), (7, 130), (10**6, 10**6))


def main(folder: Path, texts: int = 1) -> None:
    """Speak with noise of none, in one piece and by each plan of first and later chunks."""
    player = play.Player(folder)
    (_, length, _), kind = player.config["inputs"]["scales"]
    player.config["inputs"]["scales"] = ((0.0, length, 0.0), kind)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    (path,) = folder.glob("*.onnx")
    unsplit = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for text in range(texts):
        draw = np.random.default_rng(text).integers
        ids = [1, *draw(10, 60, 40 if texts == 1 else draw(3, 40)).tolist(), 2]
        feeds = {
            "input": np.array([ids]),
            "input_lengths": np.array([len(ids)]),
            "scales": np.array([0.0, length, 0.0], np.float32),
        }
        whole = unsplit.run(None, feeds)[0].reshape(-1)
        for plan in _PLANS:
            player.config["first_frames"], player.config["most_frames"] = plan
            made = np.concatenate([chunk.copy() for chunk in player.speak(ids)])
            if not np.array_equal(made, whole):
                print(text, plan, len(made), len(whole))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
