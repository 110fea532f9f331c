"""Kinds of voices that are language models of a codec's latents: Pocket-TTS, Phonon, VibeVoice."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from tts_compress.errors import MissingExtraError, ModelError
from tts_compress.models.base import Objective, check_text
from tts_compress.models.torch_noise import noise_by_step
from tts_compress.models.transformers.voice import (
    EXTRA,
    System,
    Voice,
    count_steps,
    inputs_of,
    read_processor,
    read_recording,
    tokenize,
)


def _prepare_pocket(voice: Voice) -> Voice:
    """Return the voice with the latents of its recording, or those in its folder."""
    root, processor = voice.root, _processor(voice)
    if voice.prompt.audio is None:
        return _prepare_phonon(voice)
    if root.vocoder.encoder is None:
        raise ModelError("the codec has no encoder for recordings; put latents into speaker.npy")
    samples = read_recording(voice.prompt.audio, processor.feature_extractor.sampling_rate)
    token, end = processor.audio_token, processor.audio_bos_token
    rate = processor.feature_extractor.sampling_rate
    heard = processor(text=[token + end], audio=[samples], sampling_rate=rate, return_tensors="pt")
    return replace(voice, processor=processor, speech=heard["audio_prompt_latents"][0])


def _prepare_phonon(voice: Voice) -> Voice:
    """Return the voice with the latents in its folder; transformers has no codec of speakers."""
    config = voice.root.config
    size = getattr(config, "audio_prompt_dim", config.latent_dim)
    speech = torch.from_numpy(voice.source.read_speech(int(size)))
    return replace(voice, processor=_processor(voice), speech=speech)


def _processor(voice: Voice) -> Any:
    return read_processor(voice, "PocketTTSProcessor")


def texts_of(voice: Voice, text: str) -> Iterator[Any]:
    """Yield the official inputs of each part that the official processor cuts a text into."""
    check_text(text)
    config, processor = voice.root.config, voice.processor
    speech: Any = voice.speech
    room = config.max_position_embeddings - len(speech) - 2 * config.frame_rate - 4
    longest = int(room / (1 + config.frame_rate / 3))  # of tokens with the frames they may become
    for part in processor.split_text(text) or [text]:
        tokenize(voice, part, config.vocab_size, longest)
        content = [{"type": "audio"}, {"type": "text", "text": part}]
        options = {"audio_prompt_latents": [speech]}
        yield inputs_of(voice, [{"role": "user", "content": content}], processor_kwargs=options)


def spoken_latents(voice: Voice, text: str) -> Iterator[Tensor]:
    """Yield the latents of each part of a text, shape `[S, D]`, by the official `generate`."""
    for number, inputs in enumerate(texts_of(voice, text)):
        with noise_by_step(voice.root, number):
            spoken = voice.root.generate(**inputs, return_dict_in_generate=True)
        yield spoken.audio_latents[0]


def _speak_latents(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text by the official `generate` and `PocketTTSProcessor.decode`."""
    return torch.cat([voice.processor.decode(latents) for latents in spoken_latents(voice, text)])


def spoken_rows(voice: Voice, text: str) -> Tensor:
    """Return the latents that the language model reads, shape `[S, D]`; NaN begins each part."""
    root, rows = voice.root, list[Tensor]()
    for latents in spoken_latents(voice, text):
        normal = (latents - root.latent_mean) / root.latent_std
        rows += torch.full_like(normal[:1], torch.nan), normal[:-1]
    return torch.cat(rows)


@torch.no_grad()
def read_rows(voice: Voice, text: str, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the latents and log-odds of the end after such rows, shapes `[S, D]` and `[S]`."""
    root, answers = voice.root, list[tuple[Tensor, Tensor]]()
    steps = int(getattr(root.generation_config, "num_flow_steps", None) or 1)
    starts = rows.isnan().any(dim=-1).nonzero()[:, 0].tolist()
    parts = list(rows.tensor_split(starts)[1:])
    inputs = list(texts_of(voice, text))
    if len(parts) != len(inputs) or len(rows) == 0 or starts[0] != 0:
        raise ModelError(f"the latents are not ones of {text[:40]!r}")
    for part, stated in zip(parts, inputs, strict=True):
        read = part[1:].to(root.device)
        ids = stated["input_ids"]
        placeholders = ids.new_full((1, len(read)), root.config.audio_latent_token_id)
        heard = root(
            input_ids=torch.cat([ids, placeholders], dim=1),
            audio_prompt_latents=stated["audio_prompt_latents"],
            audio_latents=read[None] if len(read) else None,
        )
        states, ends = (x[0, -len(part) :] for x in (heard.last_hidden_state, heard.logits))
        noise = states.new_zeros(len(part), root.config.latent_dim)
        answers.append((root.sample_latent(states, noise, steps), ends[:, 0]))
    latents, stops = zip(*answers, strict=True)
    return torch.cat(latents), torch.cat(stops)


_ROLES = {
    "model.embed_tokens": "text embedding",
    "model.audio_prompt_proj": "projection of the speaker's latents",
    "model.audio_latent_proj": "projection of latents",
    "model.layers": "language model of latents",
    "flow_head": "flow head, which makes latents",
    "eos_head": "end of speech",
    "vocoder.latent_proj": "projection of latents to the codec",
    "vocoder.decoder": "codec's decoder",
    "vocoder.encoder": "codec's encoder, for recordings",
}
POCKET = System(
    class_name="PocketTTSForConditionalGeneration",
    vocoder="PocketTTSAudioTokenizerModel",
    roles=_ROLES,
    objectives=(
        Objective(
            module="model", loss="mse", outputs=(0,), repeated=(("use_cache", False),), reads=True
        ),
        Objective(module="flow_head", loss="mse"),
        Objective(module="vocoder.decoder", loss="waveform"),
    ),
    sample_rate=lambda source: source.sample_rate("", 24_000),
    writes_latents=True,
    prepare=_prepare_pocket,
    speak=_speak_latents,
)
"""Pocket-TTS: a language model and a flow head of latents, and a codec (Rouard et al., 2025)."""

_CONDITIONS = {
    "model.num_speakers_embed": "table of numbers of speakers",
    "model.num_speakers_proj": "projection of the number of speakers",
    "model.duration_delta_proj": "projection of the tempo",
}
PHONON = replace(
    POCKET,
    class_name="GradiumPhononTTSForConditionalGeneration",
    roles=_CONDITIONS | _ROLES,
    prepare=_prepare_phonon,
)
"""Phonon: as Pocket-TTS, after latents of a codec of speakers, with conditions (Gradium, 2026)."""


def _prepare_vibevoice(voice: Voice) -> Voice:
    if find_spec("diffusers") is None:  # whose solver the official code draws latents by
        raise MissingExtraError("diffusers", EXTRA)
    return replace(voice, processor=read_processor(voice, "VibeVoiceProcessor"))


def _speak_vibevoice(voice: Voice, text: str) -> Tensor:
    """Return the samples of a text by the official processor and `generate`."""
    root, config = voice.root, voice.root.config.text_config
    tokenize(voice, text, config.vocab_size, config.max_position_embeddings)
    content: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if voice.prompt.audio is not None:
        rate = voice.processor.feature_extractor.sampling_rate
        content += [{"type": "audio", "audio": read_recording(voice.prompt.audio, rate)}]
    inputs = inputs_of(voice, [{"role": "0", "content": content}])
    steps = count_steps(voice, text, inputs, config.max_position_embeddings, 2)
    with noise_by_step(root):
        spoken = root.generate(**inputs, max_new_tokens=steps, return_dict_in_generate=False)
    if spoken[0] is None:
        raise ModelError("its speech ends before it begins; the weights may be damaged")
    samples: Tensor = spoken[0].reshape(-1)
    return samples


VIBEVOICE = System(
    class_name="VibeVoiceForConditionalGeneration",
    roles={
        "model.language_model": "language model of latents",
        "lm_head": "end of speech",
        "model.diffusion_head": "diffusion head, which makes latents",
        "model.multi_modal_projector": "projection of latents",
        "model.semantic_connector": "projection of what was heard",
        "model.semantic_tokenizer_encoder": "encoder of what was said",
        "model.audio_tower.decoder": "codec's decoder",
        "model.audio_tower.encoder": "codec's encoder, for recordings",
    },
    objectives=(Objective(module="model.audio_tower.decoder", loss="waveform"),),
    sample_rate=lambda source: source.sample_rate("feature_extractor", 24_000),
    prepare=_prepare_vibevoice,
    speak=_speak_vibevoice,
)
"""VibeVoice: a language model that hears what it said, and a diffusion head (Microsoft, 2025)."""
