"""Time Supertonic's structure with random weights: FP32, stock onnxruntime, and schemes.

    python -m benchmarks.supertonic WORK --schemes int8 int8-dynamic

Prints the smallest seconds of several rounds, in which all take turns, on one thread.
"""

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.supertonic.files import write_voice
from benchmarks.supertonic.structure import TINY, Sizes
from tts_compress import compress, load
from tts_compress.models.base import TTSModel

_TEXTS = (
    "The cold is here.",
    "We took the early train, because the roads were full of snow again.",
)
_SET = """version = 1
name = "bench"
language = "en-us"
texts = [
  "She sells sea shells by the shore.",
  "Turn left at the second light, then park behind the old mill.",
  "What time does the library open on Sundays?",
  "Nine thick quilts dried quickly in the warm May wind.",
]
[card]
summary = "s"
source = "s"
licence = "s"
composition = "s"
"""


def main(arguments: list[str] | None = None) -> None:
    """Write the voice, compress it, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.supertonic", description=__doc__)
    parser.add_argument("work", type=Path, help="folder for the graphs; kept for the next run")
    parser.add_argument("--schemes", nargs="*", default=["int8"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--hidden", type=int, default=2_048, help="1024: version 2's estimator")
    parser.add_argument("--tiny", action="store_true", help="a tiny voice, to try the benchmark")
    options = parser.parse_args(arguments)
    sizes = TINY if options.tiny else Sizes(estimator_hidden=options.hidden)
    options.work.mkdir(parents=True, exist_ok=True)
    texts = options.work / "texts.toml"
    texts.write_text(_SET, encoding="utf-8")
    graph = options.work / "fp32" / "onnx" / "duration_predictor.onnx"
    if not graph.is_file():
        write_voice(options.work / "fp32", sizes)
    voice: Any = load(graph)
    folders = {"fp32": graph, "stock": _stock(options.work, graph)}
    for scheme in options.schemes:
        folders[scheme] = options.work / scheme
        if not folders[scheme].is_dir():
            calibrated = scheme in {"int8", "int8-static"}
            small: Any = compress(voice, scheme, calibration=texts if calibrated else None)
            small.save(folders[scheme])
    models = {name: load(path) for name, path in folders.items()}
    for text in _TEXTS:
        print(f"{len(text)} characters")
        seconds = _measure(models, text, options.rounds)
        for name, model in models.items():
            size = sum(path.stat().st_size for path in model.files().weights) / 1e6
            faster = seconds["fp32"] / seconds[name]
            print(f"  {name:18s} {1e3 * seconds[name]:8.1f} ms {faster:5.2f}x {size:7.1f} MB")


def _stock(work: Path, graph: Path) -> Path:
    """Return the graph that onnxruntime's own tool quantized, with its folder's others."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder = work / "stock"
    if not folder.is_dir():
        shutil.copytree(graph.parents[1], folder)
        for path in (folder / "onnx").glob("*.onnx"):
            quantize_dynamic(path, path, weight_type=QuantType.QUInt8)
    return folder / "onnx" / graph.name


def _measure(models: dict[str, TTSModel], text: str, rounds: int) -> dict[str, float]:
    """Return the smallest seconds of each model; they take turns."""
    speak: dict[str, Callable[[str], Any]] = {}
    for name, model in models.items():
        speak[name] = model.open_runtime(threads=1).speak
        speak[name](text)
    best = dict.fromkeys(speak, float("inf"))
    for _ in range(rounds):
        for name, run in speak.items():
            start = perf_counter()
            run(text)
            best[name] = min(best[name], perf_counter() - start)
    return best


if __name__ == "__main__":
    main()
