"""Integer arithmetic that really runs: fused operators, channels last."""

from tts_compress.onnx.integer.emit import emit_integer
from tts_compress.onnx.integer.region import observed_tensors

__all__ = ["emit_integer", "observed_tensors"]
