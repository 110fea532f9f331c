"""Modules that another quantizer has changed, which cannot be compressed as they are."""

from itertools import chain

from torch import nn

from tts_compress.errors import QuantizationError

_STAGES = (
    (".qat", "prepared for training"),
    ("fake_quantize", "prepared for training"),
    ("observer", "prepared for calibration"),
    ("quantiz", "quantized"),
)
"""Parts of the names of packages whose layers or tensors a quantizer leaves, and what it did."""

_HARMLESS = ("torch.ao.quantization.stubs", "torch.ao.nn.intrinsic.modules")
"""`QuantStub` and `DeQuantStub`, which compute nothing, and fused layers, which are in FP32."""


def refuse_foreign(root: nn.Module) -> None:
    """Refuse a module that torch.ao or torchao, or `prepare_qat`, made of the FP32 one.

    Raises:
        QuantizationError: It holds a layer, an observer or a tensor of theirs.
    """
    tensors = ((name, parameter.data) for name, parameter in root.named_parameters())
    for name, part in chain(root.named_modules(), tensors):
        home, kind = type(part).__module__, type(part).__name__
        if home.startswith("tts_compress.qat."):
            raise QuantizationError(
                f"the module was prepared by prepare_qat ('{name}' is a {kind}); give what "
                "prepare_qat returned to convert_qat"
            )
        if not home.startswith(("torch.ao.", "torchao.")) or home.startswith(_HARMLESS):
            continue
        for mark, stage in _STAGES:
            if mark in home:
                raise QuantizationError(
                    f"the module was {stage} by {'.'.join(home.split('.')[:2])} ('{name}' is a "
                    f"{kind}); give the FP32 module it was made from, in which QuantStub and "
                    "DeQuantStub may stay: compress, or prepare_qat and convert_qat, take the "
                    "place of torch's own"
                )
