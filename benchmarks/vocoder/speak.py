"""The audio of all contestants, kept in a folder so that a killed run need not make them again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.qat.contestants import Vocoder
from benchmarks.qat.spectra import SAMPLE_RATE
from benchmarks.turns import take_turns
from benchmarks.vocoder.clips import Clip, split
from benchmarks.vocoder.contestants import Contestant, Given
from tts_compress.artifact import write_text_atomically
from tts_compress.audio import Audio
from tts_compress.evaluation.samples import write_float_wav
from tts_compress.progress import Progress

RECORDING, FP32, OURS, NAIVE = "recording", "fp32", "int8", "stock-static"
"""The order of the last three is to be seen."""

_ROUNDS = 10
"""Rounds in which the vocoders are timed against each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """Audio and speed of all contestants."""

    files: Mapping[str, Sequence[Path]]
    """WAV files of the clips, then of the sentences, by contestant; `recording` is among them."""

    speed: Mapping[str, float]
    """FP32's least time over the contestant's, by contestant."""


def speak(
    given: Given,
    clips: Sequence[Clip],
    sentences: Sequence[Clip],
    contestants: Sequence[Contestant],
    progress: Progress,
) -> Spoken:
    """Return the audio of each clip by each contestant; what a folder holds is not made again."""
    names = [contestant.name for contestant in contestants]
    both = [*clips, *sentences]
    files = {
        name: [given.folder / "wav" / name / f"{clip.name}.wav" for clip in both]
        for name in (RECORDING, *names)
    }
    done = given.folder / "spoken.json"
    made_from = {"clips": [clip.name for clip in both], "contestants": names}
    kept = json.loads(done.read_text()) if done.is_file() else {}
    if not made_from.items() <= kept.items():
        done.unlink(missing_ok=True)
        kept = made_from | {"speed": _make(given, clips, sentences, contestants, progress)}
        write_text_atomically(done, json.dumps(kept) + "\n")
    return Spoken(files=files, speed=kept["speed"])


def _make(
    given: Given,
    clips: Sequence[Clip],
    sentences: Sequence[Clip],
    contestants: Sequence[Contestant],
    progress: Progress,
) -> dict[str, float]:
    """Write all audio, and return the speeds."""
    folder = given.folder / "wav"
    for clip in (*clips, *sentences):
        write_float_wav(folder / RECORDING / f"{clip.name}.wav", clip.recording)
    for place, fold in enumerate(split(clips, sentences)):
        vocoders: dict[str, Vocoder] = {}
        for count, contestant in enumerate(contestants, place * len(contestants)):
            progress.advance("make", count, 2 * len(contestants))
            vocoder = vocoders[contestant.name] = contestant.make(given, fold)
            for clip in fold.judged:
                audio = Audio(samples=vocoder(clip.mel).reshape(-1), sample_rate=SAMPLE_RATE)
                write_float_wav(folder / contestant.name / f"{clip.name}.wav", audio)
    timed = sorted(clips, key=lambda clip: clip.mel.shape[-1])[len(clips) // 2]
    runs = {name: partial(vocoder, timed.mel) for name, vocoder in vocoders.items()}
    least = {name: min(times) for name, times in take_turns(runs, rounds=_ROUNDS).items()}
    return {name: least[FP32] / time for name, time in least.items()}
