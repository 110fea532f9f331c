"""The official `TTS` object around networks that are in memory.

Upstream's own constructor reads pickles and writes into the clone; and where speaking fails, its
`run` gives a second of silence, throws the networks away and reads the files again. The object made
here is of a subclass whose loaders read no files: they put back the networks it holds. Everything
else of it is upstream's, and runs unchanged.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import nn

from tts_compress.models.gpt_sovits.settings import vocoder_rates

if TYPE_CHECKING:
    from tts_compress.models.gpt_sovits.package import Official
    from tts_compress.models.gpt_sovits.settings import GptSovitsSettings

__all__ = ["assemble"]

_LOADERS = (
    "_init_models",
    "init_t2s_weights",
    "init_vits_weights",
    "init_bert_weights",
    "init_cnhuhbert_weights",
    "init_vocoder",
    "init_sv_model",
)


def assemble(
    official: Official, settings: GptSovitsSettings, root: nn.Module, tokenizer: Any
) -> Any:
    """Return an official `TTS` object that speaks with the networks of a root, on the processor.

    Args:
        official: Upstream's modules.
        settings: What the networks were built from.
        root: Holds them by their names; they are shared.
        tokenizer: The text encoder's.
    """
    held = _wrapped(official, settings, root, tokenizer)

    def put_back(tts: Any, *_: object) -> None:
        for name, part in held.items():
            setattr(tts, name, part)
        _configure(tts.configs, settings, root)

    kind = type("TTS", (official.inference.TTS,), dict.fromkeys(_LOADERS, put_back))
    # Any path that is there: upstream warns of others, and nothing is read from it.
    here = str(official.checkout.root)
    paths = ("t2s_weights_path", "vits_weights_path", "bert_base_path", "cnhuhbert_base_path")
    custom = dict.fromkeys(paths, here) | {
        "device": "cpu",
        "is_half": False,
        "version": settings.version,
    }
    with official.running():
        return kind({"custom": custom})


def _wrapped(
    official: Official, settings: GptSovitsSettings, root: Any, tokenizer: Any
) -> dict[str, Any]:
    """Return the object's attributes that loading sets, by name."""
    inference, rates = official.inference, vocoder_rates(settings.version)
    lightning = inference.Text2SemanticLightningModule
    found: dict[str, Any] = {
        "t2s_model": _around(lightning, model=root.t2s, config=settings.t2s),
        "vits_model": root.vits,
        "bert_tokenizer": tokenizer,
        "bert_model": root.bert,
        # What upstream's wrapper holds besides the network is never used when speaking.
        "cnhuhbert_model": _around(inference.CNHubert, model=root.hubert),
        "is_v2pro": settings.hears_speaker,
    }
    if rates is not None:
        found |= {"vocoder": root.vocoder, "vocoder_configs": asdict(rates)}
    if settings.hears_speaker:
        speaker = inference.SV.__new__(inference.SV)
        speaker.embedding_model, speaker.is_half = root.sv, False
        found["sv_model"] = speaker
    return found


def _around(kind: Any, **contents: Any) -> nn.Module:
    """Return one of upstream's modules with these contents; its constructor would read files."""
    made: nn.Module = kind.__new__(kind)
    super(kind, made).__init__()
    for name, part in contents.items():
        setattr(made, name, part)
    return made.eval()


def _configure(configs: Any, settings: GptSovitsSettings, root: Any) -> None:
    """Set what upstream reads from a model's files into its configuration."""
    data = settings.sovits["data"]
    for name in ("filter_length", "sampling_rate", "hop_length", "win_length", "n_speakers"):
        setattr(configs, name, data[name])
    configs.segment_size = settings.sovits["train"]["segment_size"]
    configs.semantic_frame_rate = "25hz"
    configs.hz = 50
    configs.max_sec = settings.t2s["data"]["max_sec"]
    configs.use_vocoder = settings.has_vocoder
    configs.update_version(settings.version)
    configs.mute_emb_sim_matrix = _likeness_to_silence(
        root.t2s, configs.mute_tokens[settings.version]
    )


@torch.no_grad()
def _likeness_to_silence(decoder: Any, token: int) -> torch.Tensor:
    """Return how like each token's embedding is to that of silence; streams are cut by it."""
    table = decoder.ar_audio_embedding(torch.arange(decoder.vocab_size))
    return F.cosine_similarity(table[token].unsqueeze(0), table, dim=-1)
