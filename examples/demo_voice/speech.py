"""Step 1, ``speech``: let the teacher (flite's voice ``rms``) speak public-domain transcripts.

Writes ``WORK/wav/NNNNN.wav`` (16 kHz, trimmed, constant gain) and ``WORK/meta.json``
(text and Piper phoneme ids of every utterance).  Files that exist are kept, so the
step can be interrupted and repeated.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import soundfile as sf

SAMPLE_RATE = 16_000
TEACHER = "rms"
PEAK = 0.7
"""No sample of the teaching material is louder than this."""
GAIN = 1.15
"""Constant gain applied to flite's output (before the limit ``PEAK``)."""
MIN_CHARS, MAX_CHARS = 12, 95
KEEP_BEFORE, KEEP_AFTER = 0.06, 0.10
"""Seconds of the teacher's own near-silence kept at the two ends."""

Audio = npt.NDArray[np.float32]


class Utterance(TypedDict):
    """One line of ``meta.json``."""

    i: int
    text: str
    ids: list[int]


def read_texts(metadata: Path) -> list[str]:
    """Return the usable transcripts of an LJSpeech ``metadata.csv``, in file order.

    Left out: digits and abbreviations (teacher and espeak may read them differently),
    quotes and brackets, and lines of unsuitable length.
    """
    lines = metadata.read_text(encoding="utf-8").splitlines()
    texts = [line.split("|")[-1].strip() for line in lines if line.strip()]
    bad = re.compile(r"\d|[^\x00-\x7f]|[\"\[\]()/&*]|\b[A-Za-z]{1,4}\.(?=\s)|[A-Z]{2,}")
    good = (t for t in texts if MIN_CHARS <= len(t) <= MAX_CHARS and not bad.search(t))
    return list(dict.fromkeys(good))


def trim(audio: Audio) -> Audio:
    """Cut the silence around the speech down to a fixed amount. ``[n] -> [m]``."""
    hop = SAMPLE_RATE // 100
    frames = audio[: len(audio) // hop * hop].reshape(-1, hop)
    loud = np.flatnonzero(np.abs(frames).max(axis=1) > 0.006)
    if len(loud) == 0:
        return audio[:0]
    start = max(0, int(loud[0]) * hop - int(KEEP_BEFORE * SAMPLE_RATE))
    return audio[start : (int(loud[-1]) + 1) * hop + int(KEEP_AFTER * SAMPLE_RATE)]


def fade(audio: Audio, seconds: float = 0.02) -> Audio:
    """Fade both ends in and out, so that no utterance starts or stops with a step."""
    n = min(int(seconds * SAMPLE_RATE), len(audio) // 2)
    ramp = np.linspace(0.0, 1.0, n, dtype=np.float32)
    out = audio.copy()
    out[:n] *= ramp
    out[len(out) - n :] *= ramp[::-1]
    return out


def teacher_says(text: str) -> Audio:
    """Return the teacher's speech of one sentence, trimmed and scaled. ``-> [n]``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.wav"
        subprocess.run(["flite", "-voice", TEACHER, "-t", text, "-o", str(path)], check=True)
        audio, rate = sf.read(path, dtype="float32")
    if rate != SAMPLE_RATE:
        raise ValueError(f"flite wrote {rate} Hz, expected {SAMPLE_RATE}")
    out = fade(trim(np.asarray(audio, dtype=np.float32))) * np.float32(GAIN)
    peak = float(np.abs(out).max(initial=0.0))
    return out * np.float32(min(1.0, PEAK / max(peak, 1e-6)))


def phoneme_ids(texts: list[str]) -> list[list[int] | None]:
    """Return Piper's ids of every text; None where espeak sees more than one sentence."""
    from piper.phoneme_ids import phonemes_to_ids
    from piper.phonemize_espeak import EspeakPhonemizer

    phonemizer = EspeakPhonemizer()
    result: list[list[int] | None] = []
    for text in texts:
        sentences = [s for s in phonemizer.phonemize("en-us", text) if s]
        result.append(phonemes_to_ids(sentences[0]) if len(sentences) == 1 else None)
    return result


def _speak_to(path: Path, text: str) -> None:
    if path.exists():
        return
    part = path.with_suffix(".part")
    sf.write(part, teacher_says(text), SAMPLE_RATE, format="WAV", subtype="PCM_16")
    part.rename(path)


def make_speech(metadata: Path, work: Path, count: int, seed: int = 0) -> None:
    """Speak ``count`` transcripts and write ``meta.json``."""
    texts = read_texts(metadata)
    random.Random(seed).shuffle(texts)  # noqa: S311 - not cryptography
    pairs = [(t, ids) for t, ids in zip(texts, phoneme_ids(texts), strict=True) if ids]
    meta = [Utterance(i=i, text=t, ids=ids) for i, (t, ids) in enumerate(pairs[:count])]
    (work / "wav").mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(_speak_to, work / f"wav/{u['i']:05d}.wav", u["text"]) for u in meta]
        for job in jobs:
            job.result()
    part = work / "meta.json.part"
    part.write_text(json.dumps(meta), encoding="utf-8")
    part.rename(work / "meta.json")
    print(f"{len(meta)} of {len(texts)} usable transcripts spoken")
