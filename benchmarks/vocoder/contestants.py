"""The vocoder in FP32, in our INT8 and in onnxruntime's, and the audio of all of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

from benchmarks.clips import Clip, Fold, middle_clip, split, write_feeds
from benchmarks.hifigan import (
    Published,
    Vocoder,
    calls,
    least_times,
    load_generator,
    open_graph,
    runs,
    sound,
)
from benchmarks.peers import PEER_CALLS, PeerCall, quantize_observed
from tts_compress.artifact import write_text_atomically
from tts_compress.audio import write_float_wav
from tts_compress.compression import compress
from tts_compress.progress import Progress

RECORDING, FP32, OURS, NAIVE = "recording", "fp32", "int8", "stock-static"
"""The order of the last three is to be seen."""

_FEW = 8
"""Clips that the stock calibrator, which keeps every activation of all of them, observes."""

_ROUNDS = 10


Make = Callable[[Published, Fold, Path], Vocoder]
"""Returns a vocoder, calibrated on a fold, with files in a folder."""


class Contestant(NamedTuple):
    """One vocoder."""

    kind: Literal["fp32", "ours", "stock"]
    how: str
    make: Make


class Spoken(NamedTuple):
    """Audio and speed of all contestants."""

    files: Mapping[str, Sequence[Path]]
    """WAV files of the clips, then of the sentences, by contestant; `recording` is among them."""

    speed: Mapping[str, float]


def _int8(published: Published, fold: Fold, folder: Path) -> Vocoder:
    feeds = write_feeds(folder / "feeds.npz", fold.calibration)
    return runs(compress(open_graph(published.graph), "int8", calibration=feeds, quality="fast"))


def _stock(how: str, call: PeerCall) -> Contestant:
    def make(published: Published, fold: Fold, folder: Path) -> Vocoder:
        output = folder / "stock.onnx"
        call(published.graph, output, ({"mel": clip.mel} for clip in fold.calibration[:_FEW]))
        return runs(open_graph(output))

    return Contestant("stock", how, make)


CONTESTANTS = {
    FP32: Contestant("fp32", "the ONNX graph", lambda of, *_: runs(open_graph(of.graph))),
    OURS: Contestant(
        "ours", '`compress("vocoder.onnx", "int8", calibration=..., quality="fast")`', _int8
    ),
    "int8-torch": Contestant(
        "ours",
        '`compress(module, "int8")`, in torch',
        lambda of, *_: calls(compress(load_generator(of.checkpoint), "int8")),
    ),
    "stock-dynamic": _stock("`quantize_dynamic` as it comes", PEER_CALLS["dynamic-default"]),
    "stock-dynamic-quint8": _stock(
        "`quantize_dynamic(weight_type=QUInt8)`", PEER_CALLS["dynamic-quint8"]
    ),
    "stock-static-per-channel": _stock(
        "`quantize_static(per_channel=True, activation_type=QUInt8)`", PEER_CALLS["static"]
    ),
    NAIVE: _stock(
        "`quantize_static` as it comes: QDQ, one scale a tensor, min-max", quantize_observed
    ),
}


def speak(
    published: Published,
    clips: Sequence[Clip],
    sentences: Sequence[Clip],
    names: Sequence[str],
    folder: Path,
    progress: Progress,
) -> Spoken:
    """Return the audio of each contestant; what an earlier run left in the folder is kept."""
    both = [*clips, *sentences]
    files = {
        name: [folder / "wav" / name / f"{clip.name}.wav" for clip in both]
        for name in (RECORDING, *names)
    }
    done = folder / "spoken.json"
    made_from = {"clips": [clip.name for clip in both], "contestants": names}
    kept = json.loads(done.read_text()) if done.is_file() else {}
    if not made_from.items() <= kept.items():
        done.unlink(missing_ok=True)
        for clip, path in zip(both, files[RECORDING], strict=True):
            write_float_wav(path, clip.recording)
        vocoders: dict[str, Vocoder] = {}
        pairs = list(product(split(clips, sentences), names))
        for count, (fold, name) in enumerate(pairs):
            progress.advance("make", count, len(pairs))
            vocoders[name] = CONTESTANTS[name].make(published, fold, folder)
            for clip in fold.judged:
                path = folder / "wav" / name / f"{clip.name}.wav"
                write_float_wav(path, sound(vocoders[name], clip))
        least = least_times(vocoders, middle_clip(clips), _ROUNDS)
        kept = made_from | {"speed": {name: least[FP32] / time for name, time in least.items()}}
        write_text_atomically(done, json.dumps(kept) + "\n")
    return Spoken(files=files, speed=kept["speed"])
