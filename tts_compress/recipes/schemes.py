"""The schemes: their names and what each one means."""

from dataclasses import dataclass

from tts_compress.errors import SchemeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """One way to compress a model; how it applies to a family stands in that family's recipe."""

    name: str
    summary: str
    """One line for people choosing."""

    trained: bool = False
    """True if the model is trained, which takes longer than compressing it."""


SCHEMES = (
    Scheme(
        name="int8",
        summary="the family's best INT8 recipe",
    ),
    Scheme(
        name="int8-static",
        summary="INT8 weights and activations, ranges from calibration",
    ),
    Scheme(
        name="int8-dynamic",
        summary="INT8 weights, activations rounded with ranges found at run time",
    ),
    Scheme(
        name="int8-qat",
        summary="as int8, trained to answer as the original does; no recordings are needed",
        trained=True,
    ),
    Scheme(
        name="int8-weight-only",
        summary="INT8 weights in the file, FP32 arithmetic",
    ),
    Scheme(
        name="int4-weight-only",
        summary="weights in 4 bits by groups, in INT8 where that cannot be",
    ),
    Scheme(
        name="fp16",
        summary="half-precision floats where they are safe",
    ),
    Scheme(
        name="bf16",
        summary="bfloat16 where they are safe",
    ),
    Scheme(
        name="fp8",
        summary="linear layers in 8-bit floats, on NVIDIA GPUs from compute capability 8.9",
    ),
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
