"""GPT-SoVITS: a language model of semantic tokens, and a synthesizer that speaks as a recording."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_compress.artifact import MANIFEST_NAME, atomic_directory, with_files
from tts_compress.errors import ModelError
from tts_compress.models.base import Prompt
from tts_compress.models.gpt_sovits.components import NAMED_CALLS, ROLES
from tts_compress.models.gpt_sovits.loaded import load_source, peek_sample_rate
from tts_compress.models.gpt_sovits.reference import check_recording, write_prompt
from tts_compress.models.gpt_sovits.settings import SETTINGS
from tts_compress.models.gpt_sovits.source import WEIGHTS
from tts_compress.models.gpt_sovits.upstream import GPT_SOVITS
from tts_compress.models.torch_components import find_components

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt
    from torch import nn

    from tts_compress.artifact import LayerRecord, Manifest
    from tts_compress.audio import Audio
    from tts_compress.models.base import Component, ModelFiles
    from tts_compress.models.distillation import Objective
    from tts_compress.models.gpt_sovits.loaded import Loaded
    from tts_compress.models.gpt_sovits.options import GptSovitsOptions
    from tts_compress.models.gpt_sovits.settings import GptSovitsSettings
    from tts_compress.models.gpt_sovits.source import GptSovitsSource
    from tts_compress.models.gpt_sovits.speech import GptSovitsSpeech
    from tts_compress.models.language_model import Tokens

__all__ = ["GptSovitsModel", "GptSovitsRuntime"]


class GptSovitsModel:
    """A GPT-SoVITS model, from its files or compressed in memory.

    Args:
        source: Its files.
        prompt: The recording it speaks by, and what is said in it.
        options: How it is run.
        loaded: What of it is in memory already.
    """

    family = GPT_SOVITS.family

    def __init__(
        self,
        source: GptSovitsSource,
        *,
        prompt: Prompt,
        options: GptSovitsOptions,
        loaded: Loaded | None = None,
    ) -> None:
        self._source = source
        self._prompt = prompt
        self._options = options
        self._loaded = loaded
        self._speech: GptSovitsSpeech | None = None
        self._sample_rate: int | None = None

    @property
    def spec(self) -> str:
        """What the user named the model by."""
        return self._source.spec

    @property
    def manifest(self) -> Manifest | None:
        """How it was compressed; None for an original."""
        return self._source.manifest

    @property
    def version(self) -> str:
        """`v1`, `v2`, `v2Pro`, `v2ProPlus`, `v3` or `v4`."""
        return self._source.version

    @property
    def options(self) -> GptSovitsOptions:
        """How it is run."""
        return self._options

    @property
    def prompt(self) -> Prompt:
        """The recording it speaks by, and what is said in it."""
        return self._prompt

    @property
    def settings(self) -> GptSovitsSettings:
        """What its networks are built from."""
        return self._load().settings

    @property
    def sample_rate(self) -> int:
        """Samples per second, Hz."""
        if self._sample_rate is None:
            self._sample_rate = peek_sample_rate(self._source)
        return self._sample_rate

    @property
    def tts(self) -> Any:
        """The official `TTS` object, whose `run` works as ever.

        Raises:
            ModelError: The model cannot be read, or there is no recording to speak by.
            MissingExtraError: A package is not installed.
        """
        return self._speaking().tts

    def components(self) -> Mapping[str, Component]:
        """Return the components that hold weights, in the order data flows."""
        return find_components(self.root(), ROLES, self._layers)

    def describe(self) -> Mapping[str, Any]:
        """Return what `inspect` shows beside the components."""
        network, audio = self.settings.t2s["model"], self._prompt.audio
        return {
            "version": self.version,
            "sample rate": f"{self.sample_rate} Hz",
            "language model": f"{network.get('n_layer')} layers of width "
            f"{network.get('hidden_dim')}, {network.get('vocab_size')} tokens",
            "language": self._options.text_lang,
            "recording": "none" if audio is None else audio.name,
        }

    def objectives(self) -> tuple[Objective, ...]:
        """Return what a compressed model can learn from this one, in the order data flows."""
        from tts_compress.models.gpt_sovits.distillation import find_objectives

        return find_objectives(self.settings)

    def named_calls(self) -> Mapping[str, tuple[str, ...]]:
        """Return what upstream calls the components by, where that is not the module itself."""
        there = self.components()
        return {name: methods for name, methods in NAMED_CALLS.items() if name in there}

    def with_prompt(self, prompt: Prompt) -> GptSovitsModel:
        """Return this model with another recording, or another text of the same one.

        The text of the former recording does not stay when only the recording is exchanged.

        Raises:
            ModelError: The recording cannot be read, or is too short or too long.
        """
        changed = self._prompt
        if prompt.audio is not None:
            check_recording(prompt.audio)
            changed = Prompt(audio=prompt.audio)
        if prompt.text is not None:
            changed = replace(changed, text=prompt.text.strip() or None)
        return GptSovitsModel(
            self._source, prompt=changed, options=self._options, loaded=self._loaded
        )

    def with_options(self, options: GptSovitsOptions) -> GptSovitsModel:
        """Return this model run in another way."""
        return GptSovitsModel(
            self._source, prompt=self._prompt, options=options, loaded=self._loaded
        )

    def root(self) -> nn.Module:
        """Return the module that holds the networks: `t2s`, `vits`, `bert`, `hubert`, ….

        Raises:
            ModelError: No clone is named, or the files cannot be read.
            ArtifactError: A saved artifact's weights are not those of its settings.
            MissingExtraError: A package is not installed.
        """
        return self._load().root

    def with_root(self, root: nn.Module, manifest: Manifest | None) -> GptSovitsModel:
        """Return this model with other networks in an official object; nothing is written."""
        return GptSovitsModel(
            replace(self._source, manifest=manifest),
            prompt=self._prompt,
            options=self._options,
            loaded=replace(self._load(), root=root, is_on_disk=False),
        )

    def synthesize(self, text: str, *, seed: int | None) -> Audio:
        """Speak with noise that `seed` chooses; None takes the most probable, without noise.

        Raises:
            TextError: There is nothing to speak in the text.
            ModelError: There is no recording to speak by, or upstream's code fails.
        """
        from tts_compress.models.torch_noise import paired_noise

        speech = self._speaking()
        with paired_noise(seed):
            return speech.speak(text)

    def generate_tokens(self, text: str, *, seed: int | None) -> Tokens:
        """Speak as `synthesize` does and return the semantic tokens.

        Raises:
            TextError: There is nothing to speak in the text.
            ModelError: There is no recording to speak by, or upstream's code fails.
        """
        from tts_compress.models.gpt_sovits.tokens import join_segments
        from tts_compress.models.torch_noise import paired_noise

        speech = self._speaking()
        with paired_noise(seed):
            return join_segments(speech.tokens(text), self._end)

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores of each step after the given tokens before it, shape `[S, 1, V]`.

        Raises:
            TextError: There is nothing to speak in the text.
            ModelError: There is no recording to speak by, or the tokens are not of this text.
        """
        from tts_compress.models.gpt_sovits.tokens import score_tokens

        speech = self._speaking()
        return score_tokens(
            self.root().get_submodule("t2s"),
            speech.segments(text),
            speech.prompt_tokens,
            tokens,
            self._end,
        )

    def open_runtime(self, *, threads: int) -> GptSovitsRuntime:
        """Open the model's files in upstream's own inference code.

        Raises:
            ModelError: The model was compressed in memory and not saved yet, or there is no
                recording to speak by.
        """
        import torch

        self.files()
        speech = self._speaking()
        torch.set_num_threads(threads)
        return GptSovitsRuntime(speech)

    def files(self) -> ModelFiles:
        """Return the model's files; for an original those of its encoders and vocoder, too.

        Raises:
            ModelError: The model was compressed in memory and not saved yet, or a file is missing.
        """
        if self._loaded is not None and not self._loaded.is_on_disk:
            raise ModelError(f"the compressed '{self.spec}' has no file yet; call save() first")
        return self._source.files()

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write all networks, settings, tokenizer, recording and manifest, all or nothing.

        A model that was not compressed is written in upstream's own formats, with a
        `tts_infer.yaml` that names the files.

        Raises:
            ArtifactError: The directory exists and `force` is not given, or cannot be written.
            ModelError: The recording cannot be read.
        """
        from tts_compress.layers.checkpoint import write_root

        if self.manifest is None:
            return self.save_official(directory, force=force)
        target, loaded = Path(directory), self._load()
        settings = replace(loaded.settings, options=self._options.stated())
        with atomic_directory(target, marker=MANIFEST_NAME, force=force) as partial:
            write_root(loaded.root, partial / WEIGHTS, self._layers)
            (partial / SETTINGS).write_text(settings.to_json(), encoding="utf-8")
            loaded.tokenizer.save_pretrained(partial)
            write_prompt(self._prompt, partial)
            manifest = with_files(self.manifest, partial, WEIGHTS)
            (partial / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
        return target

    def save_official(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write the T2S and the SoVITS model as upstream's training does, in FP16, all or nothing.

        Upstream's own programs load them. Also for a model compressed by `fp16`; others have more
        than these files can say.

        Raises:
            ArtifactError: The directory exists and `force` is not given, or cannot be written.
            ModelError: The model is compressed in a way that upstream's formats do not have.
        """
        from tts_compress.models.gpt_sovits.official_files import write_official

        return write_official(
            self._load(), self._source, self._prompt, Path(directory), force=force
        )

    @property
    def _layers(self) -> tuple[LayerRecord, ...]:
        return self.manifest.layers if self.manifest else ()

    @property
    def _end(self) -> int:
        """The token that ends speech."""
        return int(self.settings.t2s["model"]["EOS"])

    def _load(self) -> Loaded:
        if self._loaded is None:
            self._loaded = load_source(self._source)
        return self._loaded

    def _speaking(self) -> GptSovitsSpeech:
        """Return what speaks by the recording, which upstream hears once."""
        from tts_compress.models.gpt_sovits.assembly import assemble
        from tts_compress.models.gpt_sovits.speech import GptSovitsSpeech

        if self._speech is None:
            if self._prompt.audio is None:
                raise ModelError(
                    f"{self.spec!r} has no recording to speak by; put reference.wav and "
                    "reference.txt (what is said in it) beside its configuration, or give a "
                    "prompt with audio and text"
                )
            check_recording(self._prompt.audio)
            loaded = self._load()
            tts = assemble(loaded.official, loaded.settings, loaded.root, loaded.tokenizer)
            speech = GptSovitsSpeech(loaded.official, tts, self._options)
            speech.hear(self._prompt.audio, self._prompt.text)
            self._speech = speech
        return self._speech


class GptSovitsRuntime:
    """Upstream's own `TTS.run`, with its own random noise; what its users hear."""

    def __init__(self, speech: GptSovitsSpeech) -> None:
        self._speech = speech

    def speak(self, text: str) -> Audio:
        """Speak with the noise that torch draws.

        Raises:
            TextError: There is nothing to speak in the text.
        """
        return self._speech.speak(text)
