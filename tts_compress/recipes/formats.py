"""The words of recipes for number formats and methods: TOML and manifests hold their values."""

from enum import StrEnum


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
