"""What a torch layer tells of itself, for the compressed layer in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tts_compress.torch.layers.base import Geometry

__all__ = ["layer_attributes"]


def layer_attributes(geometry: Geometry) -> dict[str, Any]:
    """Return the public attributes that torch gives a layer of that geometry.

    Upstream code reads them: EnCodec pads by its convolutions' `kernel_size` and `stride`.

    Returns:
        By name, as torch has them: those of convolutions are tuples. Padding that torch is told by
            a word is the number of samples it means, and `same` only where no number does.
    """
    first, second = geometry.shape[:2]
    if geometry.operator == "Linear":
        return {"in_features": second, "out_features": first}
    if geometry.operator == "Embedding":
        return {"num_embeddings": first, "embedding_dim": second}
    inputs, outputs = second * geometry.groups, first
    if geometry.operator == "ConvTranspose1d":
        inputs, outputs = first, second * geometry.groups
    return {
        "in_channels": inputs,
        "out_channels": outputs,
        "kernel_size": (geometry.shape[2],),
        "stride": (geometry.stride,),
        "padding": (geometry.padding,) if geometry.padding >= 0 else "same",
        "dilation": (geometry.dilation,),
        "groups": geometry.groups,
        "output_padding": (geometry.output_padding,),
        "padding_mode": geometry.padding_mode,
    }
