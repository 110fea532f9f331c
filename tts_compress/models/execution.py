"""Where a model computes: on a device of torch, or by a provider of onnxruntime."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from tts_compress.options import option


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The place where a model computes; by default the processor."""

    device: str = option(
        "cpu", "--device DEVICE", "of a system in torch: cpu, cuda, cuda:N, or auto, a GPU if any"
    )
    """A system's device, by torch's name."""

    matmul_precision: Literal["highest", "high", "medium"] = option(
        "highest",
        "--matmul-precision",
        "of a system in torch: products and, on a GPU, convolutions in FP32, in TF32, in bfloat16",
    )
    """Precision of its FP32 products, by torch's name; it is that of the whole process."""

    provider: str = option(
        "CPUExecutionProvider",
        "--provider NAME",
        "of an ONNX voice: onnxruntime's, with its options, such as "
        "TensorrtExecutionProvider?trt_fp16_enable=1",
    )
    """The provider by which onnxruntime computes a voice of graphs, and its options."""

    def stated(self) -> dict[str, Any]:
        """Return the fields that are not the defaults."""
        return {n: value for n, value in asdict(self).items() if value != getattr(PROCESSOR, n)}


PROCESSOR = Execution()
"""The place where models compute by default."""


def execution_of(model: object) -> Execution:
    """Return the place where a model computes."""
    execution: Execution = getattr(model, "execution", PROCESSOR)
    return execution
