"""The kinds of voices: the official class of each, its tokens, and how it speaks."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from tts_compress.errors import MissingExtraError, ModelError, TextError, model_errors
from tts_compress.models.base import Objective, check_text
from tts_compress.models.pretrained import quiet
from tts_compress.models.transformers.files import VoiceOptions, VoiceSource

_MAX_FRAMES = 60_000  # a quarter of an hour; the alignment takes frames times tokens


@contextmanager
def bounded(predictor: nn.Module, frames: Callable[[Tensor], float]) -> Iterator[None]:
    """Refuse durations that no memory can hold, such as those of damaged weights, in the block."""

    def check(_module: Any, _inputs: Any, found: Tensor) -> None:
        total = frames(found)
        if not total <= _MAX_FRAMES:  # NaN is not, either
            raise ModelError(
                f"the durations add up to {total:g} frames, more than {_MAX_FRAMES}; give a "
                "shorter text, or another model: its weights may be damaged"
            )

    handle = predictor.register_forward_hook(check)
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A voice in memory, ready to speak."""

    root: Any
    """The official model, with any of its modules exchanged."""

    tokenizer: Any
    """The official tokenizer."""

    options: VoiceOptions

    source: VoiceSource
    """The files of the voice."""

    def speaker(self, size: int) -> Tensor:
        """Return the embedding of the speaker, shape `[1, size]`, on the model's device."""
        return torch.from_numpy(self.source.read_speaker(size)).to(self.root.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A kind of voice."""

    class_name: str
    """The official class in `transformers`."""

    vocoder: str = ""
    """The official class of the vocoder, where that is a model of its own; it becomes a child of
    the first, `vocoder`."""

    roles: Mapping[str, str]
    """Role of each component, by its name below the official model, in the order data flows."""

    objectives: tuple[Objective, ...]
    """Distillation objectives, in the order data flows."""

    sample_rate: Callable[[VoiceSource], int]
    """Returns the samples per second, Hz."""

    speak: Callable[[Voice, str], Tensor]
    """Returns the samples of a text, float32 of shape `[T]`, by the official code.

    Raises `TextError` where the text has nothing to speak or is too long.
    """


_EXTRA = "transformers-tts"


def read_tokenizer(directory: Path) -> Any:
    """Return the official tokenizer of a voice's folder."""
    import transformers

    with model_errors(f"no tokenizer can be read from '{directory}'"), _packages(), quiet():
        return transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)


def tokenize(voice: Voice, text: str, rows: int, longest: int, **options: Any) -> dict[str, Tensor]:
    """Return the official model's inputs for a text, on its device."""
    tokenizer = voice.tokenizer
    check_text(text)
    _require_romanizer(tokenizer, text)
    with model_errors(f"the tokenizer cannot read {text[:40]!r}"), _packages(), quiet():
        inputs = dict(tokenizer(text, return_tensors="pt", **options))
    ids = inputs["input_ids"]
    if not 0 < ids.shape[1] <= longest:
        raise TextError(
            f"{text[:40]!r}… has {ids.shape[1]} tokens; give a text of 1 to {longest}"
            if ids.shape[1]
            else f"the voice knows no symbol of {text[:40]!r}; give a text of its language"
        )
    if (highest := int(ids.max())) < rows:
        return {name: tensor.to(voice.root.device) for name, tensor in inputs.items()}
    unknown = ids[0, ids[0].argmax()].item() == getattr(tokenizer, "unk_token_id", None)
    if unknown:
        raise TextError(f"{text[:40]!r} holds symbols that the voice does not know; leave them out")
    raise ModelError(
        f"the tokenizer gives token {highest}, and the model knows {rows}; "
        "give the files that belong together"
    )


@contextmanager
def _packages() -> Iterator[None]:
    """Name the package that transformers asks for, in pages of advice."""
    try:
        yield
    except ImportError as error:
        named = re.search(r"requires the (\S+) library", str(error))
        raise MissingExtraError(named[1] if named else error.name or "?", _EXTRA) from error


def _require_romanizer(tokenizer: Any, text: str) -> None:
    """Refuse a text that transformers would leave half out, with a remark, without a package."""
    if text.isascii() or not getattr(tokenizer, "is_uroman", False):
        return
    try:
        import uroman  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("uroman", _EXTRA) from error


_MAX_VITS_TOKENS = 4096  # attention takes memory by their square: 64 MiB for each head


def _speak_vits(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text, as the official object speaks it."""
    inputs = tokenize(voice, text, int(voice.root.config.vocab_size), _MAX_VITS_TOKENS)
    # Between any two tokens, and around them, stands the blank.
    if getattr(voice.tokenizer, "add_blank", False) and inputs["input_ids"].shape[1] < 3:
        raise TextError(f"the voice knows no symbol of {text[:40]!r}; give a text of its language")
    chosen = {} if voice.options.speaker is None else {"speaker_id": int(voice.options.speaker)}
    predictor = voice.root.duration_predictor
    with torch.no_grad(), bounded(predictor, lambda found: _frames(voice.root, found)):
        waveform: Tensor = voice.root(**inputs, **chosen).waveform
    return waveform[0]


def _frames(root: Any, log_durations: Tensor) -> float:
    return float((log_durations.exp() / float(root.speaking_rate)).ceil().sum())


_VITS = System(
    class_name="VitsModel",
    roles={
        "embed_speaker": "speakers",
        "text_encoder": "text encoder",
        "duration_predictor": "duration predictor",
        "flow": "flow",
        "decoder": "decoder",
        "posterior_encoder": "posterior encoder (only for training)",
    },
    objectives=(
        Objective(module="flow", loss="mse"),
        Objective(module="decoder", loss="waveform"),
    ),
    sample_rate=lambda source: source.sample_rate(None, 16_000),
    speak=_speak_vits,
)
"""VITS and MMS: the whole voice is one network, whose durations are drawn (Kim et al., 2021)."""


_MAX_BARK_TOKENS = 256  # what the official configuration says where nothing is stated


def _speak_bark(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text by the official processor and `generate`."""
    import transformers

    stated = _semantic_settings(voice.root)
    longest = int(stated.get("max_input_semantic_length", _MAX_BARK_TOKENS))
    rows = int(voice.root.semantic.config.input_vocab_size) - int(
        stated.get("text_encoding_offset", 10_048)
    )
    # Refused here: the official code cuts off what is too long, without a word.
    tokenize(voice, text, rows, longest, add_special_tokens=False)
    processor = transformers.BarkProcessor(voice.tokenizer)
    preset = voice.source.read_preset()
    inputs = dict(processor(text, voice_preset=preset, max_length=longest))
    history = inputs.pop("history_prompt", None)
    if preset is not None:
        history = {name: torch.as_tensor(values) for name, values in history.items()}
    inputs = tree_map_only(
        Tensor, lambda x: x.to(voice.root.device), inputs | {"history_prompt": history}
    )
    waveform: Tensor = voice.root.generate(**inputs)
    return waveform.reshape(-1)


def _semantic_settings(root: Any) -> dict[str, Any]:
    settings = getattr(root.generation_config, "semantic_config", None)
    if not isinstance(settings, dict):
        raise ModelError(
            "the model has no generation_config.json with 'semantic_config'; fetch it again"
        )
    return settings


_BARK = System(
    class_name="BarkModel",
    roles={
        "semantic": "language model of the text's tokens",
        "coarse_acoustics": "language model of the first codebooks",
        "fine_acoustics": "predictor of the other codebooks",
        "codec_model": "audio codec",
    },
    objectives=(Objective(module="codec_model.decoder", loss="waveform"),),
    sample_rate=lambda source: source.sample_rate("codec_config", 24_000),
    speak=_speak_bark,
)
"""Bark: three language models of tokens, one behind the other, and EnCodec (Suno, 2023)."""


def _speak_speecht5(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text by the official `generate_speech`."""
    root, config = voice.root, voice.root.config
    inputs = tokenize(voice, text, int(config.vocab_size), int(config.max_text_positions))
    speaker = voice.speaker(int(config.speaker_embedding_dim))
    waveform: Tensor = root.generate_speech(
        inputs["input_ids"],
        speaker_embeddings=speaker,
        attention_mask=inputs.get("attention_mask"),
        vocoder=root.vocoder,
    )
    return waveform.reshape(-1)


_SPEECHT5 = System(
    class_name="SpeechT5ForTextToSpeech",
    vocoder="SpeechT5HifiGan",
    roles={
        "speecht5.encoder": "text encoder",
        "speecht5.decoder": "spectrogram decoder",
        "speech_decoder_postnet": "spectrogram, its end and its refinement",
        "vocoder": "vocoder",
    },
    objectives=(Objective(module="vocoder", loss="waveform"),),
    sample_rate=lambda source: source.sample_rate("", 16_000),
    speak=_speak_speecht5,
)
"""SpeechT5: spectrograms step by step with dropout left on, then HiFi-GAN (Ao et al., 2022)."""


def _speak_fastspeech2(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text, as the official object speaks it."""
    root, config = voice.root, voice.root.model.config
    longest = int(config.max_source_positions)
    inputs = tokenize(voice, text, int(config.vocab_size), longest)
    chosen = {}
    if voice.options.speaker is not None:
        ids = torch.tensor([[int(voice.options.speaker)]])
        chosen["speaker_ids"] = ids.to(root.device)
    if size := config.speaker_embed_dim:
        chosen["speaker_embedding"] = voice.speaker(int(size))
    speed = float(config.speaking_speed)
    with (
        torch.no_grad(),
        bounded(root.model.duration_predictor, lambda found: float(found.sum()) * speed),
    ):
        waveform: Tensor = root(
            inputs["input_ids"],
            attention_mask=inputs.get("attention_mask"),
            return_dict=True,
            **chosen,
        ).waveform
    return waveform.reshape(-1)


_FASTSPEECH2 = System(
    class_name="FastSpeech2ConformerWithHifiGan",
    roles={
        "model.speaker_id_embedding": "speakers",
        "model.language_id_embedding": "languages",
        "model.encoder": "text encoder",
        "model.projection": "projection of the speaker",
        "model.duration_predictor": "duration predictor",
        "model.pitch_predictor": "pitch predictor",
        "model.energy_predictor": "energy predictor",
        "model.pitch_embed": "pitch embedding",
        "model.energy_embed": "energy embedding",
        "model.decoder": "spectrogram decoder",
        "model.speech_decoder_postnet": "spectrogram and its refinement",
        "vocoder": "vocoder",
    },
    objectives=(Objective(module="vocoder", loss="waveform"),),
    sample_rate=lambda source: source.sample_rate("vocoder_config", 22_050),
    speak=_speak_fastspeech2,
)
"""FastSpeech2 with Conformers, and HiFi-GAN: one pass, no noise (Ren et al., 2021)."""


def _speak_csm(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text, said by the first speaker, by the official `generate`."""
    config, longest = voice.root.config, voice.root.generation_config.max_new_tokens
    room = int(config.max_position_embeddings) - (longest or 0)
    if not longest or room < 1:
        raise ModelError(
            f"the model has max_new_tokens {longest!r} in its generation_config.json; give a "
            f"number below its {config.max_position_embeddings} positions"
        )
    inputs = tokenize(voice, f"[0]{text}", int(config.text_vocab_size), room)
    others = int(config.num_codebooks) - 1
    spoken: list[Tensor] = voice.root.generate(
        **inputs,
        output_audio=True,
        depth_decoder_min_new_tokens=others,
        depth_decoder_max_new_tokens=others,
    )
    return spoken[0].reshape(-1)


_CSM = System(
    class_name="CsmForConditionalGeneration",
    roles={
        "embed_text_tokens": "text embedding",
        "backbone_model": "language model of the first codebook",
        "lm_head": "head of the first codebook",
        "depth_decoder": "language model of the other codebooks",
        "codec_model": "audio codec",
    },
    objectives=(Objective(module="codec_model.decoder", loss="waveform"),),
    sample_rate=lambda source: source.sample_rate("codec_config", 24_000),
    speak=_speak_csm,
)
"""CSM: a language model of the first codebook, one of the others, and Mimi (Sesame, 2025)."""


def _speak_dia(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text, said by the first speaker, by the official processor."""
    import transformers

    root, config = voice.root, voice.root.config
    said = f"[S1] {text}"
    tokenize(voice, said, config.encoder_config.vocab_size, _positions(config.encoder_config))
    settings, room = root.generation_config, _positions(config.decoder_config)
    longest = settings.max_new_tokens or settings.max_length
    if not longest or not longest + max(config.delay_pattern) < room:
        raise ModelError(
            f"the model has max_length {longest!r} in its generation_config.json; give a number "
            f"below its {room} positions, less the delay of the last codebook"
        )
    special = {
        f"{name}_token_id": getattr(config.decoder_config, f"{name}_token_id")
        for name in ("bos", "eos", "pad")
    }
    audio = {**special, "delay_pattern": config.delay_pattern}
    features = transformers.DiaFeatureExtractor(sampling_rate=root.vocoder.config.sampling_rate)
    processor = transformers.DiaProcessor(features, voice.tokenizer, root.vocoder)
    inputs = processor(text=[said], **audio).to(root.device)
    samples: Tensor = processor.decode(root.generate(**inputs), **audio)
    return samples.reshape(-1)


def _positions(config: Any) -> int:
    return int(config.max_position_embeddings)


_DIA = System(
    class_name="DiaForConditionalGeneration",
    vocoder="DacModel",
    roles={
        "model.encoder": "text encoder",
        "model.decoder": "language model of all codebooks",
        "logits_dense": "heads of all codebooks",
        "vocoder": "audio codec",
    },
    objectives=(Objective(module="vocoder.decoder", loss="waveform"),),
    sample_rate=lambda source: source.sample_rate("", 44_100),
    speak=_speak_dia,
)
"""Dia: a text encoder, one language model of nine codebooks, and DAC (Nari Labs, 2025)."""


SYSTEMS: dict[str, System] = {
    "bark": _BARK,
    "fastspeech2_conformer_with_hifigan": _FASTSPEECH2,
    "speecht5": _SPEECHT5,
    "vits": _VITS,
    "csm": _CSM,
    "dia": _DIA,
}
"""Kinds of voices, by the `model_type` in `config.json`; `files.KINDS` lists their names."""
