"""F5-TTS: a diffusion transformer that speaks as a recording does, and a Vocos vocoder."""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from tts_compress.audio import Audio, Samples
from tts_compress.errors import ModelError, TextError, model_errors, reason
from tts_compress.models.base import Objective, Prompt, check_text
from tts_compress.models.f5 import FAMILY
from tts_compress.models.f5.network import (
    CONFIG,
    HOP_LENGTH,
    SAMPLE_RATE,
    VOCABULARY,
    VOCODER,
    F5Networks,
    F5Options,
    F5Source,
    find_source,
    load_networks,
    official,
)
from tts_compress.models.files import REFERENCE_TEXT, read_header, write_prompt, write_recording
from tts_compress.models.pretrained import quiet
from tts_compress.models.torch_model import TorchFamilyModel
from tts_compress.models.torch_noise import paired_noise

MAX_FRAMES = 8_192
"""Frames of the recording and one part of a text together, 87 s: the text encoder's positions."""

_CROSS_FADE_S = 0.15
_LONGEST_S = 22.0
_SHORTEST_REFERENCE_S = 0.5

# Converting the sample rate takes one filter per position between samples.
_LARGEST_FILTERS = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The recording to speak by, as upstream's inference takes it."""

    samples: Tensor
    """Float32 `[1, T]`, without silence at the ends and at most 12 s long."""

    sample_rate: int
    """Samples per second, Hz."""

    text: str
    """Transcript of the recording, with a full stop."""

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return self.samples.shape[-1] / self.sample_rate


def prepare_reference(recording: Path, spoken: str) -> Reference:
    """Return a recording, in which `spoken` is said, cut and finished as `F5TTS.infer` does it."""
    import soundfile

    prepare = official("f5_tts.infer.utils_infer").preprocess_ref_audio_text
    with TemporaryDirectory() as folder, quiet():
        copy = Path(folder) / "reference.wav"
        write_recording(recording, copy)
        cut, text = prepare(str(copy), spoken, show_info=lambda _: None)
        wave, sample_rate = soundfile.read(cut, dtype="float32", always_2d=True)
    samples = torch.from_numpy(wave.T).mean(dim=0, keepdim=True)
    reference = Reference(samples=samples, sample_rate=sample_rate, text=text)
    if reference.duration_s < _SHORTEST_REFERENCE_S:
        raise ModelError(
            f"'{recording}' holds {reference.duration_s:.1f} s of sound; "
            f"give a recording of {_SHORTEST_REFERENCE_S:g} to 12 s"
        )
    return reference


def check_recording(path: Path) -> None:
    """Refuse a file that is no recording, without reading all of it."""
    rate = read_header(path).samplerate
    common = math.gcd(rate, SAMPLE_RATE)
    if (rate // common) * (SAMPLE_RATE // common) > _LARGEST_FILTERS:
        raise ModelError(
            f"'{path}' has {rate} samples per second, which is in no simple relation to "
            f"{SAMPLE_RATE}; convert the recording to that rate"
        )


class F5Runtime:
    """Upstream's own `F5TTS.infer`, with its own random noise."""

    def __init__(self, api: Any, prompt: Prompt, options: F5Options) -> None:
        assert prompt.audio is not None, "a recording was prepared"
        self._api = api
        self._text = prompt.text
        self._options = options
        # A copy that upstream reads without further programs, whatever the recording's format.
        self._folder = TemporaryDirectory()
        self._recording = Path(self._folder.name) / "reference.wav"
        write_recording(prompt.audio, self._recording)

    def speak(self, text: str) -> Audio:
        """Speak a text; long ones in parts on several threads, as upstream does."""
        check_text(text)
        try:
            with quiet():
                samples, sample_rate, _ = self._api.infer(
                    str(self._recording),
                    self._text,
                    text,
                    show_info=lambda *_: None,
                    progress=None,
                    **_solver(self._options),
                )
        # Raised by audio codecs that upstream may need to read recordings, or by the modules.
        except (ImportError, RuntimeError, ValueError) as error:
            raise ModelError(f"f5_tts cannot speak {text[:40]!r}: {reason(error)}") from error
        return Audio(samples=np.asarray(samples, np.float32), sample_rate=sample_rate)


def check_symbols(api: Any, text: str) -> None:
    """Refuse a text in a script that the model was not trained on."""
    symbols = official("f5_tts.model.utils").convert_char_to_pinyin([text])[0]
    vocabulary = api.ema_model.vocab_char_map
    if not any(symbol in vocabulary for symbol in symbols if symbol.isalnum()):
        raise TextError(
            f"the model knows no letter of {text[:40]!r}; give a text in its own language"
        )


def split_text(text: str, reference: Reference, options: F5Options) -> list[str]:
    """Return the parts that upstream speaks a text in, each of about 22 s with the recording."""
    check_text(text)
    per_second = len(reference.text.encode()) / reference.duration_s
    longest = int(per_second * (_LONGEST_S - reference.duration_s) * options.speed)
    parts: list[str] = official("f5_tts.infer.utils_infer").chunk_text(text, max_chars=longest)
    for part in parts:
        frames = _frames(part, reference, options)
        if frames > MAX_FRAMES:
            raise TextError(
                f"{part[:40]!r}… would be spoken in one go for "
                f"{frames * HOP_LENGTH / SAMPLE_RATE:.0f} s, the recording included; at most "
                f"{MAX_FRAMES * HOP_LENGTH / SAMPLE_RATE:.0f} s can be: end sentences with a "
                "full stop"
            )
    return parts


def speak(
    api: Any, reference: Reference, parts: Sequence[str], options: F5Options, seed: int | None
) -> Audio:
    """Speak the parts of a text, each with noise chosen by the seed and its number."""
    waves = []
    for index, part in enumerate(parts):
        with paired_noise(None if seed is None else (seed, index)):
            waves.append(_speak_part(api, reference, part, options))
    return Audio(samples=_join(waves), sample_rate=SAMPLE_RATE)


def _speak_part(api: Any, reference: Reference, part: str, options: F5Options) -> Samples:
    """Speak in the way that streams: the other one runs on threads of its own.

    Noise could not be chosen there. One piece as long as can be is the whole part.
    """
    pieces = official("f5_tts.infer.utils_infer").infer_batch_process(
        (reference.samples, reference.sample_rate),
        reference.text,
        [part],
        api.ema_model,
        api.vocoder,
        mel_spec_type=api.mel_spec_type,
        progress=None,
        device=api.device,
        streaming=True,
        chunk_size=1 << 48,
        **_solver(options),
    )
    with model_errors(f"the model cannot speak {part[:40]!r}"), quiet():
        return np.concatenate([piece for piece, _ in pieces]).astype(np.float32)


def _solver(options: F5Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.limits}


def _join(waves: Sequence[Samples]) -> Samples:
    """Fade the parts into each other in a straight line, as upstream does."""
    joined = waves[0]
    for wave in waves[1:]:
        count = min(int(_CROSS_FADE_S * SAMPLE_RATE), len(joined), len(wave))
        rising = np.linspace(0, 1, count)
        start = len(joined) - count
        overlap = joined[start:] * (1 - rising) + wave[:count] * rising
        joined = np.concatenate([joined[:start], overlap, wave[count:]])
    return joined.astype(np.float32)


def _frames(part: str, reference: Reference, options: F5Options) -> int:
    """Return the frames of the recording and a part together, by upstream's rule."""
    recording = int(reference.duration_s * SAMPLE_RATE) // HOP_LENGTH
    said, wanted = len(reference.text.encode()), len(part.encode())
    speed = 0.3 if wanted < 10 else options.speed  # few syllables are spoken slowly
    return max(recording + int(recording / said * wanted / speed), said + wanted) + 1


class F5Model(TorchFamilyModel[F5Source, F5Options, F5Networks]):
    """An F5-TTS model, from its files or with modules exchanged in memory.

    It is opened from a directory, or by a name that the f5_tts package knows;
    `?nfe_step=16&speed=1.2` behind it sets options of `F5Options`.
    """

    family = FAMILY.name
    example = "nfe_step=16&speed=1.2"
    find = find_source
    read = load_networks
    check_recording = check_recording
    sample_rate = SAMPLE_RATE
    # The names of all backbones.
    roles: ClassVar = {
        "transformer.text_embed": "text encoder",
        "transformer.time_embed": "time embedding",
        "transformer.audio_embed": "input embedding",
        "transformer.input_embed": "input embedding",
        "transformer.transformer_blocks": "diffusion transformer",
        "transformer.layers": "diffusion transformer",
        "transformer.long_skip_connection": "skip connection",
        "transformer.norm_out": "output modulation",
        "transformer.proj_out": "output projection",
        "vocoder": "vocoder",
    }

    @property
    def api(self) -> Any:
        """The official `f5_tts.api.F5TTS`, whose `infer` works as ever."""
        return self.loaded.api

    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""
        source, audio = self.source, self.prompt.audio
        return {
            "sample rate": f"{SAMPLE_RATE} Hz",
            "transformer": f"{source.backbone}, {source.arch.get('depth')} layers "
            f"of width {source.arch.get('dim')}",
            "solver": f"{self.options.nfe_step} steps, guidance {self.options.cfg_strength:g}",
            "recording": "none" if audio is None else audio.name,
        }

    def objectives(self) -> tuple[Objective, ...]:
        """Return the distillation objectives, in the order data flows.

        The transformer's calls are the steps of the original's own trajectories: its output for
        each state that the solver reaches, with the text and without.
        """
        return (
            Objective(
                module="transformer",
                loss="mse",
                # It keeps the text's embedding from one step of the solver to the next.
                repeated=(("cache", False),),
            ),
            Objective(module="vocoder", loss="waveform", method="decode"),
        )

    def synthesize(self, text: str, *, seed: int | None = 0) -> Audio:
        """Speak a text with noise chosen by `seed`; None speaks without noise.

        Upstream's own `infer` speaks on threads of its own, where noise cannot be chosen.
        """
        parts = split_text(text, self._reference, self.options)
        check_symbols(self.api, text)
        try:
            return speak(self.api, self._reference, parts, self.options, seed)
        finally:
            self.loaded.forget_text()

    @cached_property
    def _reference(self) -> Reference:
        """The recording, prepared as upstream does; refused before anything is loaded."""
        recording, spoken = self._recording(), self.prompt.text
        if not spoken or not spoken.strip():
            raise ModelError(
                f"what is said in '{recording}' is not known; write it into {REFERENCE_TEXT} "
                "beside it, or give it as the prompt's text"
            )
        _ = self.api  # with its packages
        return prepare_reference(recording, spoken)

    def _speech(self) -> F5Runtime:
        assert self._reference, "there is a recording"
        return F5Runtime(self.api, self.prompt, self.options)

    def _write(self, directory: Path) -> None:
        self.source.write_config(directory / CONFIG, self.options)
        shutil.copyfile(self.source.vocabulary, directory / VOCABULARY)
        shutil.copyfile(self.source.vocoder_config, directory / VOCODER)
        write_prompt(self.prompt, directory)
