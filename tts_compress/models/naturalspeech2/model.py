"""NaturalSpeech2 by Amphion: a WaveNet that denoises EnCodec's latents, in a recording's voice."""

import argparse
import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tts_compress.audio import Audio, Samples
from tts_compress.errors import ModelError, TextError, reason
from tts_compress.folders import temporary_folder
from tts_compress.models.base import UNLIKE_UPSTREAM, Component, Objective, check_text
from tts_compress.models.files import check_duration, write_recording
from tts_compress.models.naturalspeech2 import FAMILY
from tts_compress.models.naturalspeech2.network import (
    REFERENCE,
    SETTINGS,
    Amphion,
    NS2Networks,
    NS2Options,
    NS2Source,
    find_source,
    find_tables,
    load_networks,
)
from tts_compress.models.torch_model import TorchFamilyModel, find_components
from tts_compress.torch.devices import device_of
from tts_compress.torch.layers.module_surgery import (
    copy_sharing_tensors,
    intercepted,
    normalize,
)

SAMPLE_RATE = 24_000
"""Samples per second of EnCodec's audio, Hz."""

MAX_S = 60
"""The longest speech, in seconds; anything longer comes from a damaged duration predictor."""

MAX_PHONES = 1_000
"""The longest text; each phone attends to all others."""

_FRAMES_PER_S = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class NS2Speech:
    """The official object with what it needs to speak.

    It is upstream's own inference; only dropout is off, which upstream's script leaves on.
    """

    amphion: Amphion
    inference: Any
    """`NS2Inference`, with any of its modules exchanged."""

    recording: Path
    options: NS2Options

    def speak(self, text: str) -> Audio:
        """Return the audio of the official `inference`, with the noise that torch draws."""
        check_text(text)
        try:
            samples = self._infer(text)
        except TypeError as error:
            if "object" in str(error):  # phones that have no number
                raise TextError(
                    f"{text[:40]!r} is read as phones that the model does not know; begin it with "
                    "a word, and write it in English"
                ) from error
            raise ModelError(f"the model cannot speak {text[:40]!r}: {reason(error)}") from error
        except OSError as error:
            is_lexicon = error.filename == self.inference.cfg.preprocess.lexicon_path
            hint = f"; Amphion brings it: check the clone at '{self.amphion.clone}' out again"
            problem = f"upstream cannot read a file: {error}{hint if is_lexicon else ''}"
            raise ModelError(problem) from error
        # Raised because of nltk's data, exchanged modules, audio formats, …
        except (LookupError, RuntimeError, ValueError, ImportError) as error:
            if type(error) is LookupError:  # which nltk raises, and nothing more special
                raise ModelError(
                    "g2p_en lacks data of nltk; get it with: python -m nltk.downloader cmudict "
                    "averaged_perceptron_tagger averaged_perceptron_tagger_eng"
                ) from error
            raise ModelError(f"the model cannot speak {text[:40]!r}: {reason(error)}") from error
        return Audio(samples=samples, sample_rate=SAMPLE_RATE)

    def _infer(self, text: str) -> Samples:
        import torch

        written: list[Any] = []

        def record(_: Any, file: str, data: Any, samplerate: int) -> None:
            del file, samplerate
            written.append(data)

        speaking = copy.copy(self.inference)
        with temporary_folder() as folder, self.amphion.running(), torch.no_grad():
            speaking.args = argparse.Namespace(
                device=device_of(speaking.model),
                text=text,
                ref_audio=str(self.recording.resolve()),
                inference_step=self.options.inference_step,
                output_dir=folder,
            )
            # It would write the audio to a file, rounded to 16 bits.
            files = intercepted(self.amphion.inference.sf, "write", record)
            with _limited(speaking.model, text), files:
                speaking.inference()
        return np.asarray(written[0], np.float32)


@contextmanager
def _limited(model: Any, text: str) -> Iterator[None]:
    """Refuse texts and durations that would fill the memory, before they do."""

    def check_phones(_: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        del arguments
        count = keywords["phone_id"].shape[1]
        if count > MAX_PHONES:
            raise TextError(
                f"{text[:40]!r}… has {count} phones and at most {MAX_PHONES} can be spoken at "
                "once; give a shorter text"
            )

    def check_durations(_: Any, arguments: tuple[Any, ...]) -> None:
        frames = int(arguments[1].clamp(0, _FRAMES_PER_S * MAX_S + 1).sum())
        if not 0 < frames <= _FRAMES_PER_S * MAX_S:
            length = f"more than {MAX_S} s" if frames else "no time at all"
            raise ModelError(f"the model would take {length} to speak {text[:40]!r}")

    prior = model.prior_encoder
    with (
        prior.register_forward_pre_hook(check_phones, with_kwargs=True),
        prior.length_regulator.register_forward_pre_hook(check_durations),
    ):
        yield


class NaturalSpeech2Model(TorchFamilyModel[NS2Source, NS2Options, NS2Networks]):
    """A NaturalSpeech2 model, from its files or compressed in memory.

    It is opened from the folder of a checkpoint, of a saved model or of an artifact;
    `?inference_step=20` behind it sets the steps.
    """

    family = FAMILY.name
    example = "inference_step=20"
    find = find_source
    read = load_networks
    check_recording = check_duration
    tables = find_tables
    sample_rate = SAMPLE_RATE
    # The codec's tables are no operators' weights.
    roles: ClassVar = {
        "prompt_lin": "projection of the prompt",
        "prompt_encoder": "prompt encoder",
        "query_emb": "queries of the voice",
        "query_attn": "attention to the voice",
        "prior_encoder.encoder": "text encoder",
        "prior_encoder.duration_predictor": "duration predictor",
        "prior_encoder.pitch_predictor": "pitch predictor",
        "prior_encoder.pitch_embedding": "pitch embedding",
        "diffusion.diff_estimator": "diffusion estimator",
        "codec.encoder": "audio codec's encoder",
        "codec.decoder": "audio codec's decoder",
    }

    @property
    def inference(self) -> Any:
        """The official `NS2Inference`, whose `inference` works as ever once its `args` are set."""
        return self.loaded.inference

    def objectives(self) -> tuple[Objective, ...]:
        """Return the distillation objectives, in the order data flows.

        The estimator's calls are the steps of the original's own trajectories: its output for each
        state that the solver reaches. The predictors of durations and pitch are not trained.
        """
        return (
            Objective(module="prompt_encoder", loss="mse"),
            Objective(module="prior_encoder.encoder", loss="mse"),
            Objective(module="diffusion.diff_estimator", loss="mse"),
            Objective(module="codec.decoder", loss="waveform"),
        )

    def components(self) -> Mapping[str, Component]:
        """Return the components that hold weights, in the order data flows."""
        # Attention hides three of its four projections until it is opened.
        return find_components(
            normalize(copy_sharing_tensors(self.root())), self.roles, self.layers
        )

    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""
        diffusion = self.loaded.settings.model["diffusion"]
        wavenet, audio = diffusion["wavenet"], self.prompt.audio
        return {
            "sample rate": f"{SAMPLE_RATE} Hz",
            "estimator": f"WaveNet, {wavenet['num_layers']} layers of width "
            f"{wavenet['hidden_size']}",
            "solver": f"{self.options.inference_step} steps, {diffusion['ode_solver']}",
            UNLIKE_UPSTREAM: "dropout is off here, where the script leaves it on",
            "recording": "none" if audio is None else audio.name,
        }

    def _speech(self) -> NS2Speech:
        recording = self._recording()  # refused before anything is loaded
        return NS2Speech(
            amphion=self.loaded.amphion,
            inference=self.loaded.inference,
            recording=recording,
            options=self.options,
        )

    def _write(self, directory: Path) -> None:
        settings = replace(self.loaded.settings, options=self.options)
        (directory / SETTINGS).write_text(settings.to_json(), encoding="utf-8")
        if (audio := self.prompt.audio) is not None:
            write_recording(audio, directory / f"{REFERENCE}.wav")
