"""Step 1, ``speech``: let the demo voice speak, and note when it speaks which phoneme."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from demo_voice.speech import SAMPLE_RATE
from torch import Tensor

from . import tensors
from .texts import pronunciations, sentences

VOICE = Path(__file__).parents[2] / "tts_compress/voices/demo.onnx"
FRAME = SAMPLE_RATE // 20
"""Samples of a latent, 50 ms."""
_HOP = 256
_GAIN = 1.5
_AFTER = 8
"""Frames of silence at the end of a sentence: the official program goes on a little."""


def _teacher() -> Any:
    """Return a session of the demo voice that also gives the length of every phoneme."""
    import onnx
    from onnxruntime import InferenceSession, SessionOptions

    model = onnx.load(VOICE)
    lengths = next(n.output[0] for n in model.graph.node if n.op_type == "Ceil")
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(lengths))
    options = SessionOptions()
    options.intra_op_num_threads = 1
    return InferenceSession(model.SerializeToString(), options)


def speak(teacher: Any, phonemes: str) -> tuple[Tensor, Tensor]:
    """Speak without noise. ``-> int16 [frames * FRAME], place of a phoneme in the text [frames]``.

    The place behind the last phoneme stands for the silence at the end.
    """
    from piper.phoneme_ids import phonemes_to_ids

    ids = phonemes_to_ids(list(phonemes))
    audio, lengths = teacher.run(
        None,
        {
            "input": np.array([ids]),
            "input_lengths": np.array([len(ids)]),
            "scales": np.array([0, 1, 0], np.float32),
        },
    )
    # start, pad, then each phoneme with its pad, and the end
    ends = lengths.ravel().cumsum()[3 : 3 + 2 * len(phonemes) : 2] * _HOP
    samples = audio.ravel()
    count = -(-len(samples) // FRAME) + _AFTER
    samples = np.pad(samples, (0, count * FRAME - len(samples)))
    places = np.searchsorted(ends, (np.arange(count) + 0.5) * FRAME, side="right")
    loud = np.clip(samples * _GAIN, -1, 1) * 32767
    return torch.from_numpy(loud.astype(np.int16)), torch.from_numpy(places)


def make_speech(work: Path, count: int) -> None:
    """Write ``WORK/speech.safetensors``."""
    teacher, said, texts = _teacher(), pronunciations(), sentences(count)
    phonemes = [" ".join(said[w] for w in text[:-1].split()) + "." for text in texts]
    pairs = [speak(teacher, text) for text in phonemes]
    audios, places = zip(*pairs, strict=True)
    packed = tensors.joined("audio", audios) | tensors.joined("places", [p.short() for p in places])
    about = {"texts": texts, "phonemes": phonemes, "said": said}
    work.mkdir(parents=True, exist_ok=True)
    tensors.write(work / "speech.safetensors", packed, about)
    hours = sum(map(len, audios)) / SAMPLE_RATE / 3600
    print(f"{count} sentences, {hours:.2f} hours")
