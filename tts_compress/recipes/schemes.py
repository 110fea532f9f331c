"""The schemes: their names and what each one means."""

from dataclasses import dataclass

from tts_compress.errors import SchemeError


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to compress a model; how it applies to a family stands in that family's recipe."""

    name: str
    summary: str
    """One line for people choosing."""

    trained: bool = False
    """True if the model is trained, which takes longer than compressing it."""


SCHEMES = (
    Scheme("int8", "the family's best INT8 recipe"),
    Scheme("int8-static", "INT8 weights and activations, ranges from calibration"),
    Scheme("int8-dynamic", "INT8 weights, activations rounded with ranges found at run time"),
    Scheme(
        "int8-qat",
        "as int8, trained to answer as the original does; no recordings are needed",
        trained=True,
    ),
    Scheme("int8-weight-only", "INT8 weights in the file, FP32 arithmetic"),
    Scheme("int4-int8", "ONNX graphs: INT8 arithmetic as in int8, weights in 4 bits in the file"),
    Scheme(
        "int4-qat",
        "as int4-int8, trained to answer as the original does; no recordings are needed",
        trained=True,
    ),
    Scheme("int4-weight-only", "weights in 4 bits by groups, in INT8 where that cannot be"),
    Scheme("mixed", "a format for each group of layers, by a recipe that `search` wrote"),
    Scheme("fp16", "half-precision floats where they are safe"),
    Scheme("bf16", "bfloat16 where they are safe"),
    Scheme("fp8", "linear layers in 8-bit floats, on NVIDIA GPUs from compute capability 8.9"),
)


def find_scheme(name: str) -> Scheme:
    """Return the scheme called `name`.

    Raises:
        SchemeError: There is none; the message lists those there are.
    """
    for scheme in SCHEMES:
        if scheme.name == name:
            return scheme
    known = ", ".join(scheme.name for scheme in SCHEMES)
    raise SchemeError(f"unknown scheme {name!r}; known schemes: {known}")
