"""The vocoder in FP32, in our INT8 and in onnxruntime's, and the audio of all of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
"""Rounds in which the vocoders are timed against each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One vocoder."""

    name: str
    kind: Literal["fp32", "ours", "stock"]
    how: str
    """The call, for the report."""

    make: Callable[[Published, Fold, Path], Vocoder]
    """Returns it, calibrated on a fold, with files in a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """Audio and speed of all contestants."""

    files: Mapping[str, Sequence[Path]]
    """WAV files of the clips, then of the sentences, by contestant; `recording` is among them."""

    speed: Mapping[str, float]
    """FP32's least time over the contestant's, by contestant."""


def _int8(published: Published, fold: Fold, folder: Path) -> Vocoder:
    feeds = write_feeds(folder / "feeds.npz", fold.calibration)
    return runs(compress(open_graph(published.graph), "int8", calibration=feeds, quality="fast"))


def _stock(call: PeerCall) -> Callable[[Published, Fold, Path], Vocoder]:
    def make(published: Published, fold: Fold, folder: Path) -> Vocoder:
        output = folder / "stock.onnx"
        call(published.graph, output, ({"mel": clip.mel} for clip in fold.calibration[:_FEW]))
        return runs(open_graph(output))

    return make


_STOCK = {
    "stock-dynamic": ("`quantize_dynamic` as it comes", PEER_CALLS["dynamic-default"]),
    "stock-dynamic-quint8": (
        "`quantize_dynamic(weight_type=QUInt8)`",
        PEER_CALLS["dynamic-quint8"],
    ),
    "stock-static-per-channel": (
        "`quantize_static(per_channel=True, activation_type=QUInt8)`",
        PEER_CALLS["static"],
    ),
    NAIVE: ("`quantize_static` as it comes: QDQ, one scale a tensor, min-max", quantize_observed),
}

CONTESTANTS = (
    Contestant(
        name=FP32, kind="fp32", how="the ONNX graph", make=lambda of, *_: runs(open_graph(of.graph))
    ),
    Contestant(
        name=OURS,
        kind="ours",
        how='`compress("vocoder.onnx", "int8", calibration=..., quality="fast")`',
        make=_int8,
    ),
    Contestant(
        name="int8-torch",
        kind="ours",
        how='`compress(module, "int8")`, in torch',
        make=lambda of, *_: calls(compress(load_generator(of.checkpoint), "int8")),
    ),
    *(
        Contestant(name=name, kind="stock", how=how, make=_stock(call))
        for name, (how, call) in _STOCK.items()
    ),
)


def speak(
    published: Published,
    recordings: tuple[Sequence[Clip], Sequence[Clip]],
    contestants: Sequence[Contestant],
    folder: Path,
    progress: Progress,
) -> Spoken:
    """Return the audio of clips and of sentences by each contestant.

    What the folder holds, of an earlier run, is not made again.
    """
    clips, sentences = recordings
    names = [contestant.name for contestant in contestants]
    both = [*clips, *sentences]
    wav = folder / "wav"
    files = {
        name: [wav / name / f"{clip.name}.wav" for clip in both] for name in (RECORDING, *names)
    }
    done = folder / "spoken.json"
    made_from = {"clips": [clip.name for clip in both], "contestants": names}
    kept = json.loads(done.read_text()) if done.is_file() else {}
    if not made_from.items() <= kept.items():
        done.unlink(missing_ok=True)
        for clip, path in zip(both, files[RECORDING], strict=True):
            write_float_wav(path, clip.recording)
        vocoders: dict[str, Vocoder] = {}
        for number, fold in enumerate(split(clips, sentences)):
            for count, contestant in enumerate(contestants, number * len(contestants)):
                progress.advance("make", count, 2 * len(contestants))
                vocoder = vocoders[contestant.name] = contestant.make(published, fold, folder)
                for clip in fold.judged:
                    write_float_wav(
                        wav / contestant.name / f"{clip.name}.wav", sound(vocoder, clip)
                    )
        least = least_times(vocoders, middle_clip(clips), _ROUNDS)
        kept = made_from | {"speed": {name: least[FP32] / time for name, time in least.items()}}
        write_text_atomically(done, json.dumps(kept) + "\n")
    return Spoken(files=files, speed=kept["speed"])
