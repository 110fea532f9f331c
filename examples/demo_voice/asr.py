"""Word error rates by PocketSphinx with its stock English model and language model."""

from __future__ import annotations

import re

import jiwer
import numpy as np
import numpy.typing as npt
from pocketsphinx import Decoder

Audio = npt.NDArray[np.float32]


def words(text: str) -> str:
    """Return a text in lower case without punctuation."""
    return " ".join(re.sub(r"[^a-z' ]", " ", text.lower()).split())


class Listener:
    """Transcribes speech (16 kHz)."""

    def __init__(self) -> None:
        self._decoder = Decoder(cmn="batch", loglevel="FATAL")

    def hear(self, audio: Audio) -> str:
        """``[n] -> text``; the level is equalised and 0.2 s of silence put around the speech."""
        level = 0.7 / max(float(np.abs(audio).max()), 1e-3)
        silence = np.zeros(3200, np.float32)
        padded = np.concatenate([silence, audio * level, silence])
        self._decoder.reinit_feat()  # a transcript must not depend on earlier audio
        self._decoder.start_utt()
        pcm = (np.clip(padded, -1, 1) * 32767).astype(np.int16)
        self._decoder.process_raw(pcm.tobytes(), full_utt=True)
        self._decoder.end_utt()
        guess = self._decoder.hyp()
        return words(guess.hypstr) if guess else ""

    def word_error_rate(self, texts: list[str], audios: list[Audio]) -> float:
        """WER over all sentences together."""
        heard = [self.hear(audio) for audio in audios]
        return float(jiwer.wer([words(t) for t in texts], heard))
