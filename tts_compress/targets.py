"""Which processor an artifact is made for: the TOML files in `calib/targets`."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field, model_validator

from tts_compress.config import Config, ConfigFile, read_config
from tts_compress.environment import Processor, describe_processor
from tts_compress.errors import RecipeError
from tts_compress.paths import data_file, data_names

__all__ = [
    "HOST",
    "Arithmetic",
    "Choices",
    "FewOutputs",
    "Figures",
    "LeakyRelu",
    "Machine",
    "Target",
    "TorchKernels",
    "find_target",
    "name_target",
]

HOST = "host"
"""Stands for the target of the processor that compresses."""

LeakyRelu: TypeAlias = Literal["max", "lookup"]
Arithmetic: TypeAlias = Literal["codes", "real"]
FewOutputs: TypeAlias = Literal["blocks", "frames", "codes"]
TorchKernels: TypeAlias = Literal["fbgemm", "onednn"]


class Choices(Config):
    """Which of several equivalent forms the integer graph takes; the fastest on the target."""

    leaky_relu: LeakyRelu = "max"
    """`max` of the codes and their multiple, or the runtime's own operator, a table `lookup`."""

    addition: Arithmetic = "codes"
    """Residual sums on codes, or as `real` numbers between two changes of code and layout."""

    gates: Arithmetic = "codes"
    """The product of tanh and sigmoid, likewise."""

    upsampling: Arithmetic = "codes"
    """A transposed convolution as an integer convolution into phases, or as it is, in FP32."""

    few_outputs: FewOutputs = "blocks"
    """A convolution with few outputs that are read as real numbers, such as the audio: a matrix
    product by `blocks` of samples, one by `frames`, or an integer convolution whose `codes` are
    turned into real numbers behind it. With four outputs or more, the first two are a product by
    groups of four frames where the length is known to be a multiple of four."""

    narrowest: int = Field(default=1, ge=1)
    """Channels from which on a convolution of three taps is faster in integers; a narrower one
    stays in FP32, although a recipe covers it, unless it has as many more taps."""

    torch_linear: TorchKernels = "fbgemm"
    """Which implementation of torch's integer kernels multiplies linear layers; where a build of
    torch has neither, the one that it has."""


class Figures(Config):
    """What the alternatives of one choice took on one graph."""

    choice: str
    """A field of `Choices`."""

    shape: str
    """The graph, for people."""

    us: dict[str, float]
    """Microseconds, the least of all rounds, by alternative. For `narrowest`, whose alternatives
    are `integer` and `real`, `channels` says how wide the graph is."""

    channels: int = 0


class Machine(Config):
    """What the figures were measured on and by."""

    processor: str
    features: tuple[str, ...]
    threads: int
    rounds: int
    packages: dict[str, str]
    command: str


class Target(ConfigFile):
    """What the integer kernels of one kind of processor compute well and without overflow."""

    name: str
    summary: str

    activations: Literal["uint8", "int8"]
    """The activation codes its kernels are made for."""

    weight_bits: Literal[7, 8]
    """7 where pairs of products are added in 16 bits, which 8-bit weights overflow."""

    reason: str
    """Why these."""

    measured: bool
    """Whether the choices come from `figures`."""

    assumption: str | None = None
    """What the choices rest on where nothing was measured."""

    choices: Choices
    machine: Machine | None = None
    figures: tuple[Figures, ...] = ()

    @model_validator(mode="after")
    def _measured_or_assumed(self) -> Target:
        if self.measured != bool(self.machine and self.figures):
            raise ValueError("measured = true needs [machine] and [[figures]]; false, neither")
        if self.measured == bool(self.assumption):
            raise ValueError("a target that is not measured states its assumption; another none")
        unknown = {row.choice for row in self.figures} - set(Choices.model_fields)
        if unknown:
            raise ValueError(f"figures of {', '.join(sorted(unknown))}, which is no choice")
        return self

    @property
    def signed(self) -> bool:
        """Whether activation codes are int8 rather than uint8."""
        return self.activations == "int8"

    @property
    def weight_limit(self) -> int:
        """The largest magnitude of a weight's code."""
        return int(2 ** (self.weight_bits - 1)) - 1


def find_target(name: str = HOST) -> Target:
    """Return the target `host`, a shipped one, or the one in a user's TOML file.

    Raises:
        RecipeError: There is none of that name, the file is malformed, or no target is made for
            the processor at hand.
    """
    chosen = name_target(describe_processor()) if name == HOST else name
    return read_config(data_file("calib/targets", chosen), Target)


def name_target(processor: Processor) -> str:
    """Return the name of the shipped target that fits a processor.

    Raises:
        RecipeError: None does.
    """
    architecture = processor.architecture.lower()
    if architecture in {"aarch64", "arm64", "armv7l", "armv8l"}:
        return "arm64"
    if architecture in {"x86_64", "amd64", "x86", "i386", "i686"}:
        return "x86-vnni" if processor.has_integer_dot_product else "x86"
    known = ", ".join(data_names("calib/targets"))
    raise RecipeError(
        f"no target is made for this processor ({architecture or 'unknown'}); name one of {known}, "
        "or give a target's .toml file"
    )
