"""F5-TTS: a diffusion transformer that speaks as a recording does, and a Vocos vocoder."""

import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from tts_compress.audio import Audio
from tts_compress.errors import ModelError
from tts_compress.models.distillation import Objective
from tts_compress.models.f5 import FAMILY
from tts_compress.models.f5.files import (
    CONFIG,
    SAMPLE_RATE,
    VOCABULARY,
    VOCODER,
    F5Options,
    F5Source,
    find_source,
)
from tts_compress.models.f5.network import F5Networks, load_networks
from tts_compress.models.f5.speech import (
    F5Runtime,
    Reference,
    check_recording,
    check_symbols,
    prepare_reference,
    speak,
    split_text,
    write_recording,
)
from tts_compress.models.files import REFERENCE, REFERENCE_TEXT
from tts_compress.models.torch_model import TorchFamilyModel


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
        """The official `f5_tts.api.F5TTS`, whose `infer` works as ever.

        Raises:
            ModelError: The files cannot be read, or do not fit each other.
            ArtifactError: A saved artifact's weights are not those of its settings.
            MissingExtraError: A package is not installed.
        """
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

        Raises:
            TextError: The text is empty, has nothing to speak, or a sentence of it is too long.
            ModelError: There is no recording to speak by, or the modules cannot be run.
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
        if self.prompt.audio is not None:
            write_recording(self.prompt.audio, directory / REFERENCE)
        if self.prompt.text is not None:
            (directory / REFERENCE_TEXT).write_text(self.prompt.text, encoding="utf-8")
