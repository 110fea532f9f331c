"""The schemes by name, and the words of recipes for number formats and methods.

TOML and manifests hold the values of these words.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tts_compress.errors import SchemeError, nearest


class Quality(StrEnum):
    """A bound on the sound of `int8`; the fastest formats within it are found by listening."""

    GOOD = "good"
    HIGH = "high"
    FAST = "fast"

    @property
    def bound(self) -> float | None:
        """The largest distortion, 1 is what 8-bit mu-law adds; None for the recipe as it is.

        Within a bound the floor of pauses rises by at most 3 dB, and of some thousand symbols one
        lasts a frame more or less.
        """
        return {"good": 0.5, "high": 0.25}.get(self)


def find_quality(name: str) -> Quality:
    """Return the quality of a name."""
    if name not in set(Quality):
        raise SchemeError(f"no quality {name!r}; available: {', '.join(Quality)}")
    return Quality(name)


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
    Scheme("int4-gptq", "torch: as int4-weight-only, by GPTQ on calibration data; linear layers"),
    Scheme("int4-inc", "torch: as int4-gptq, by Intel Neural Compressor (extra 'inc')"),
    Scheme("mixed", "a format for each group of layers, by a recipe that `search` wrote"),
    Scheme("fp16", "half-precision floats where they are safe"),
    Scheme("bf16", "bfloat16 where they are safe"),
    Scheme("fp8", "linear layers in 8-bit floats, on NVIDIA GPUs from compute capability 8.9"),
)
"""All schemes; `tts-compress schemes` says which family has which."""


_OTHER_NAMES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8": "fp8",
    "half": "fp16",
    "int4": "int4-weight-only",
}
"""Common words for schemes, as torch and other tools have them."""


def find_scheme(name: str, listed: Iterable[str] = ()) -> Scheme:
    """Return the scheme that a name means: upper or lower case, `_` or `-`, and a few other names.

    Args:
        name: `int8-static`, `INT8_STATIC`, `float16`.
        listed: Names that an error lists, such as a family's; without any, those of all schemes.
    """
    schemes = {scheme.name: scheme for scheme in SCHEMES}
    plain = str(name).strip().lower().replace("_", "-")  # programs give None, or bits
    plain = _OTHER_NAMES.get(plain, plain)
    if plain in schemes:
        return schemes[plain]
    names = [name for name in schemes if name in set(listed)] or list(schemes)
    raise SchemeError(
        f"unknown scheme {name!r}; known schemes: {', '.join(names)}{nearest(plain, names)}"
    )


class _Word(StrEnum):
    """A string with a fixed set of values; messages quote it as they quote strings."""

    def __repr__(self) -> str:
        return repr(self.value)


class Weights(_Word):
    """Storage types of weights."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8 = "float8"
    """e4m3 with scales, for linear layers on a GPU."""

    INT16 = "int16"
    """Two parts of 8 bits, of an ONNX graph: in as many bytes as float16 a tenth of its error."""

    INT12 = "int12"
    """The same with a second part of 4 bits."""

    INT8 = "int8"
    """Symmetric, one scale per output channel."""

    INT4 = "int4"
    """One scale per group of inputs. In torch symmetric; in an ONNX graph an integer factor for
    each group and a scale per output channel, so that integer kernels multiply the weight too."""


class Activations(_Word):
    """Types of arithmetic."""

    NONE = "none"
    """FP32, whatever the weights are stored as."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8 = "float8"
    """8-bit floats with scales found at run time."""

    DYNAMIC = "dynamic"
    """8-bit integers with ranges found at run time."""

    STATIC = "static"
    """8-bit integers with ranges from calibration."""

    CHANNELS = "channels"
    """The same with a range for each channel, for convolutions of an ONNX graph that each stand
    alone: real numbers come in and go out, rounded on either side."""

    INPUTS = "inputs"
    """As `channels`, but what comes out is not rounded: finer, slower where channels are few."""


BY_CHANNEL = frozenset({Activations.CHANNELS, Activations.INPUTS})
CALIBRATED = (Activations.STATIC, *sorted(BY_CHANNEL))
"""Types of arithmetic whose ranges are calibrated."""


class Algorithm(_Word):
    """Algorithms that choose the codes of a weight."""

    RTN = "rtn"
    """Each weight is rounded to nearest."""

    GPTQ = "gptq"
    """One input is rounded after another; the later ones make up for the error on calibration
    data."""

    INC_RTN = "inc-rtn"
    INC_GPTQ = "inc-gptq"
    """The same two by Intel Neural Compressor."""


class Observer(_Word):
    """Rules that choose a range from the activations observed in calibration."""

    MINMAX = "minmax"
    PERCENTILE = "percentile"
    ENTROPY = "entropy"
    MSE = "mse"
