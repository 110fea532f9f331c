"""A recipe: the rules by which one scheme applies to a family, and groups of layers for rules."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

from pydantic import Field, model_validator

from tts_compress.config import Card, Config, ConfigFile, card_problems, data_file, read_config
from tts_compress.errors import RecipeError
from tts_compress.recipes.formats import (
    CALIBRATED,
    SCHEMES,
    Activations,
    Algorithm,
    Observer,
    Quality,
    Weights,
)

Format: TypeAlias = Literal["qdq", "qdq16", "qoperator"]
"""Forms of `static` in an ONNX graph: `qdq` puts quantize-dequantize pairs around standard
operators, which every runtime reads; `qdq16` does so with activations in 16 bits, which NPUs
multiply with weights in 8 and CPUs compute in FP32; `qoperator` uses onnxruntime's own integer
operators with nothing between them, which is faster there and runs nowhere else."""

_ARITHMETIC = {
    Weights.FLOAT32: (Activations.NONE,),
    Weights.FLOAT16: (Activations.NONE, Activations.FLOAT16),
    Weights.BFLOAT16: (Activations.NONE, Activations.BFLOAT16),
    Weights.FLOAT8: (Activations.FLOAT8,),
    Weights.INT16: (Activations.NONE,),
    Weights.INT4: (Activations.NONE, Activations.DYNAMIC, Activations.STATIC),
    Weights.INT8: (Activations.NONE, Activations.DYNAMIC, *CALIBRATED),
}

_WEIGHTS_OF: dict[Algorithm, tuple[Weights, ...]] = {
    Algorithm.RTN: tuple(Weights),
    Algorithm.GPTQ: (Weights.INT4, Weights.INT8),
    Algorithm.INC_RTN: (Weights.INT4,),
    Algorithm.INC_GPTQ: (Weights.INT4,),
}


class Calibration(Config):
    """Inputs to observe activations on, and how their ranges are chosen."""

    set: str | None = None
    """A shipped calibration set or the path of a TOML file; bare graphs have none, because they
    are called with the arrays of a file."""

    observer: Observer = Field(default=Observer.PERCENTILE, strict=False)
    percentile: float = Field(default=99.99, gt=50, le=100)
    """Share of the observed magnitudes a range covers, in percent; only for `percentile`."""

    utterances: int = Field(default=64, ge=1)
    """Number of texts of the set, or calls of the file, that are used, from its beginning."""

    equalize: bool = False
    """Bring the channels of each tensor that is rounded to about the same range first, by factors
    that the convolutions before and behind it take over: exact in FP32, finer codes in integers.
    Takes a pass over the first calls more."""


class Coverage(Config):
    """Conditions on the operators that a rule is about, besides their modules' names."""

    operators: tuple[str, ...] = ()
    """Operator types, ONNX's or torch's; empty means every type the technique supports."""

    skip_graph_inputs: bool = False
    """Leave out operators that read an input of the graph."""

    skip_upsampled: bool = False
    """Leave out convolutions that read what a transposed convolution made, past activations."""

    min_channels: int = Field(default=1, ge=1)
    """Leave out weights with fewer channels than this on either side."""

    min_kernel: int = Field(default=1, ge=1)
    """Leave out convolutions whose kernels are smaller than this along some axis."""

    min_weights: int = Field(default=1, ge=1)
    """Leave out operators with fewer weights than this."""

    durations: bool = False
    """Cover only operators of an ONNX graph that decide durations and nothing else of the sound."""


class Rule(Coverage):
    """The format of the modules whose dotted name matches."""

    match: str
    """An `fnmatch` pattern on module names such as `dec.resblocks.0.convs.1`."""

    weights: Weights = Field(default=Weights.FLOAT32, strict=False)
    activations: Activations = Field(default=Activations.NONE, strict=False)
    exclude: tuple[str, ...] = ()
    """Patterns of modules left in FP32 although `match` covers them."""

    group_size: int = Field(default=64, ge=16)
    """Inputs that share a scale, where weights have four bits; in a convolution inputs × kernel."""

    algorithm: Algorithm = Field(default=Algorithm.RTN, strict=False)
    """Algorithm that chooses the codes: in torch of linear layers, in four bits, and `gptq` also in
    `int8`; in an ONNX graph of convolutions along time and of products, by `gptq` in four bits.
    Other layers are rounded to nearest."""

    @model_validator(mode="after")
    def _consistent(self) -> "Rule":
        for problem, value, accepted in (
            (f"activations {self.activations!r} do", self.activations, _ARITHMETIC[self.weights]),
            (f"algorithm {self.algorithm!r} does", self.weights, _WEIGHTS_OF[self.algorithm]),
        ):
            if value not in accepted:
                raise ValueError(
                    f"{problem} not go with weights {self.weights!r}; "
                    f"accepted: {', '.join(accepted)}"
                )
        return self

    @property
    def observes(self) -> bool:
        """True if ranges or codes are chosen from data."""
        return self.activations in CALIBRATED or self.algorithm.endswith("gptq")

    def covers(self, module: str, operator: str, *, decides_durations: bool = False) -> bool:
        """Return True if this rule decides about an operator of a module."""
        if self.durations and not decides_durations:
            return False
        return fnmatchcase(module, self.match) and (
            not self.operators or operator in self.operators
        )

    def excludes(self, module: str) -> bool:
        """Return True if a covered module is left in FP32."""
        return any(fnmatchcase(module, pattern) for pattern in self.exclude)


class Recipe(ConfigFile):
    """One scheme for one family; where several rules cover a module, the first decides."""

    family: str
    scheme: str
    summary: str
    format: Format = "qdq"
    quality: Quality = Quality.FAST
    """Bound that is kept by choosing among formats while a graph is compressed; `fast` is none."""

    float_residuals: bool = False
    """Add residual streams that leave the integers in FP32, and let convolutions that only such a
    sum reads output FP32: less noise, a little slower. For `qoperator`; the portable form rounds
    only around the operators that rules name."""

    calibration: Calibration | None = None
    component: tuple[Rule, ...] = Field(min_length=1)

    @property
    def uses_calibration(self) -> bool:
        """True if ranges or codes are chosen from data, or the model is trained on it."""
        trained = any(scheme.trained for scheme in SCHEMES if scheme.name == self.scheme)
        return trained or any(rule.observes for rule in self.component)

    @model_validator(mode="after")
    def _calibrated_when_needed(self) -> "Recipe":
        static = any(rule.activations in CALIBRATED for rule in self.component)
        if self.calibration is None and any(rule.observes for rule in self.component):
            raise ValueError(
                "a rule with static activations, or an algorithm that observes ('gptq', "
                "'inc-gptq'), needs a [calibration] table"
            )
        # With four bits the table may stay where an algorithm is exchanged for one without data.
        exchanged = any(rule.weights == Weights.INT4 for rule in self.component)
        if self.calibration is not None and not self.uses_calibration and not exchanged:
            raise ValueError(
                "[calibration] is given, but no rule has static activations, or an algorithm that "
                "observes ('gptq', 'inc-gptq'), and nothing is trained"
            )
        if not static and self.format != "qdq":
            raise ValueError(
                f"format {self.format!r} is a form of static activations, which no rule has; "
                "leave the format out"
            )
        return self


class CalibrationSet(ConfigFile):
    """Texts on which activations are observed; never evaluation texts."""

    name: str
    language: str
    """An espeak-ng voice name, such as `en-us`."""

    texts: tuple[str, ...] = Field(min_length=1)
    card: Card | None = None
    """Where the texts come from; needed unless all are ids."""

    @model_validator(mode="after")
    def _has_origin(self) -> "CalibrationSet":
        if problems := card_problems(self.card, self.texts):
            raise ValueError(problems[0])
        return self


def read_calibration_set(name: str) -> CalibrationSet:
    """Return a shipped calibration set, or the one in a user's TOML file."""
    return read_config(data_file("calib/sets", name), CalibrationSet)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers that get one format."""

    name: str
    patterns: tuple[str, ...]
    """Patterns on dotted module names; in the order of all groups the first that matches counts."""

    modules: tuple[str, ...]
    """The modules it stands for in one model."""

    @property
    def component(self) -> str:
        """The first part of its modules' names."""
        return self.modules[0].split(".")[0] or "unnamed"


def find_groups(
    modules: Iterable[str], first: Sequence[str] = (), *, each_layer: bool = False
) -> tuple[Group, ...]:
    """Return the groups of the modules of a model, in the order of the modules.

    Args:
        modules: Dotted names of modules that hold weights.
        first: Patterns, each of which makes a group of the modules that match none before it.
        each_layer: Make a group of every other module; by default modules whose names are alike
            up to the first number are one, such as the convolutions of `dec.resblocks.1`.
    """
    names = list(dict.fromkeys(modules))
    members: dict[str, list[str]] = {}
    for name in names:
        pattern = next((p for p in first if fnmatchcase(name, p)), None)
        key = pattern or (name if each_layer else _block(name))
        members.setdefault(key, []).append(name)
    for pattern in first:
        if pattern not in members:
            components = ", ".join(sorted({name.split(".")[0] for name in names}))
            raise RecipeError(
                f"group {pattern!r} matches no layer that is not in another group; "
                f"the model's components are {components}"
            )
    # As rules, the groups of these patterns decide before the others.
    order = sorted(members, key=lambda key: first.index(key) if key in first else len(first))
    return tuple(
        Group(
            name=key,
            patterns=(key,) if key in first else _patterns(key, members[key]),
            modules=tuple(members[key]),
        )
        for key in order
    )


def _block(module: str) -> str:
    """Return a name up to its first number."""
    parts = module.split(".")
    numbers = (index for index, part in enumerate(parts) if part.isdecimal())
    return ".".join(parts[: next(numbers, len(parts)) + 1])


def _patterns(block: str, modules: Sequence[str]) -> tuple[str, ...]:
    exact = exact_pattern(block)
    inner = (f"{exact}.*",) if any(module != block for module in modules) else ()
    return (*((exact,) if block in modules else ()), *inner)


def exact_pattern(module: str) -> str:
    """Return the pattern that matches a name and no other."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in module)
