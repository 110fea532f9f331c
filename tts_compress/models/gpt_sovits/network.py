"""A model's networks as one tree of modules: as a skeleton, and filled from upstream's files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from tts_compress.errors import MissingExtraError, ModelError, reason
from tts_compress.models.gpt_sovits.decoder import open_decoder
from tts_compress.models.gpt_sovits.residual import open_residuals
from tts_compress.models.gpt_sovits.upstream import GPT_SOVITS
from tts_compress.models.packages import import_package

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from tts_compress.models.gpt_sovits.package import Official
    from tts_compress.models.gpt_sovits.settings import GptSovitsSettings

__all__ = ["build_skeleton", "fill", "leave_out_unheard"]

_UNUSED_BUFFERS = ("cluster_size", "embed_avg")
"""Of a codebook: what its training adds up."""

_UNHEARD_LAYERS = 2
"""Of the text encoder, at its end."""


class Networks(nn.Module):
    """Holds the components of a model under their names."""


def build_skeleton(official: Official, settings: GptSovitsSettings) -> nn.Module:
    """Return the networks that settings describe, their weights without values.

    Parameters are on torch's `meta` device and take no memory; buffers are real. What only training
    needs is left out, and the T2S transformer and the decoder's residual blocks are opened.

    Raises:
        ModelError: The settings describe no model.
        MissingExtraError: A package is not installed.
    """
    try:
        init_empty_weights = import_package("accelerate", GPT_SOVITS.extra).init_empty_weights
        transformers = import_package("transformers", GPT_SOVITS.extra)
        root = Networks()
        with official.running(), init_empty_weights(include_buffers=False):
            with transformers.modeling_utils.no_init_weights():
                root.bert = transformers.AutoModelForMaskedLM.from_config(
                    transformers.AutoConfig.for_model(**settings.bert)
                )
                root.hubert = transformers.HubertModel(transformers.HubertConfig(**settings.hubert))
            root.t2s = open_decoder(official.t2s.Text2SemanticDecoder(config=settings.t2s))
            root.vits = _synthesizer(official, settings)
            open_residuals(official, root.vits)
            if settings.has_vocoder:
                root.vocoder = _vocoder(official, settings)
                open_residuals(official, root.vocoder)
            if settings.hears_speaker:
                root.sv = official.speaker.ERes2NetV2(baseWidth=24, scale=4, expansion=4)
    except MissingExtraError:
        raise
    # Settings that are no model's make constructors fail in arbitrary ways.
    except Exception as error:
        raise ModelError(f"the settings describe no GPT-SoVITS model: {reason(error)}") from error
    leave_out_unheard(root.bert)
    return root.eval()


def leave_out_unheard(bert: Any) -> None:
    """Take away what of the text encoder never reaches the synthesizer, in place.

    Upstream takes the states before the last two layers of a model that guesses hidden words.

    Args:
        bert: A `BertForMaskedLM`.
    """
    layers = bert.bert.encoder.layer
    for index in range(max(len(layers) - _UNHEARD_LAYERS, 0), len(layers)):
        layers[index] = _PassOn()
    bert.cls = nn.Identity()


class _PassOn(nn.Module):
    """Stands in the place of a layer of the text encoder that nobody hears."""

    def forward(self, states: Tensor, *_: Any, **__: Any) -> tuple[Tensor]:
        """Return the states as they are."""
        return (states,)


def fill(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Give a part of a skeleton its weights, in FP32.

    Args:
        module: Its parameters are without memory.
        tensors: By name; those of parts that are not there are passed over.
        where: The file, for messages.

    Raises:
        ModelError: A weight is missing or has another shape.
    """
    wanted = module.state_dict(keep_vars=True)
    missing = [name for name, old in wanted.items() if old.is_meta and name not in tensors]
    wrong = [n for n, old in wanted.items() if n in tensors and tensors[n].shape != old.shape]
    if missing or wrong:
        problem = f"lacks {missing[0]!r}" if missing else f"has another shape of {wrong[0]!r}"
        raise ModelError(
            f"'{where}' {problem} ({len(missing)} missing, {len(wrong)} of other shapes) for the "
            "network that its settings describe; fetch it again"
        )
    given = {name: _full(tensors[name]) for name in wanted if name in tensors}
    module.load_state_dict(given, strict=False, assign=True)


def _full(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def _synthesizer(official: Official, settings: GptSovitsSettings) -> nn.Module:
    data, train = settings.sovits["data"], settings.sovits["train"]
    kind = "SynthesizerTrnV3" if settings.has_vocoder else "SynthesizerTrn"
    stated = settings.sovits["model"] | {
        "semantic_frame_rate": "25hz",  # upstream knows no other in any of its versions
        "version": settings.version,
        "n_speakers": data["n_speakers"],
    }
    vits = getattr(official.inference, kind)(
        data["filter_length"] // 2 + 1, train["segment_size"] // data["hop_length"], **stated
    )
    if hasattr(vits, "enc_q"):
        del vits.enc_q  # encodes the recordings that training learns from
    for codebook in vits.quantizer.modules():
        for name in _UNUSED_BUFFERS:
            codebook._buffers.pop(name, None)  # noqa: SLF001
    made: nn.Module = vits
    return made


def _vocoder(official: Official, settings: GptSovitsSettings) -> nn.Module:
    stated = settings.vocoder or {}
    if settings.version == "v3":
        attributes = official.checkout.load("BigVGAN.env").AttrDict(stated)
        made: nn.Module = official.inference.BigVGAN(attributes)
    else:
        made = official.inference.Generator(**stated)
    return made
