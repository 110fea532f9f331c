"""ONNX graphs of systems that run in torch, and graphs in the place of torch modules.

>>> from tts_compress.export import OnnxVocos, export
>>> export(load("f5-tts:F5TTS_v1_Base"), "out/f5-onnx")
>>> compress("onnx:out/f5-onnx/vocoder.onnx", "int8-dynamic").save("out/vocoder-int8")
>>> f5.vocoder = OnnxVocos("out/vocoder-int8/vocoder.onnx")  # of an official F5TTS object
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tts_compress.export.dac import export_dac
    from tts_compress.export.f5 import export_f5
    from tts_compress.export.f5_step import F5GraphOptions
    from tts_compress.export.families import export, record_feeds
    from tts_compress.export.fourier import FrameSettings
    from tts_compress.export.runtime import OnnxDac, OnnxModule, OnnxVocos
    from tts_compress.export.vocos import export_vocos
    from tts_compress.models.feeds import feeds_writer

__all__ = [
    "F5GraphOptions",
    "FrameSettings",
    "OnnxDac",
    "OnnxModule",
    "OnnxVocos",
    "export",
    "export_dac",
    "export_f5",
    "export_vocos",
    "feeds_writer",
    "record_feeds",
]

# Resolved on first use, so that the import does not cost torch.
_HOMES = {
    "F5GraphOptions": "export.f5_step",
    "FrameSettings": "export.fourier",
    "OnnxDac": "export.runtime",
    "OnnxModule": "export.runtime",
    "OnnxVocos": "export.runtime",
    "export": "export.families",
    "export_dac": "export.dac",
    "export_f5": "export.f5",
    "export_vocos": "export.vocos",
    "feeds_writer": "models.feeds",
    "record_feeds": "export.families",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"tts_compress.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
