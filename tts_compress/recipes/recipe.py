"""How one scheme applies to the components of one family: the TOML files in `calib/recipes`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import Field, ValidationError, model_validator

from tts_compress.config import (
    Card,
    Config,
    ConfigFile,
    data_file,
    data_names,
    describe_problems,
    read_config,
)
from tts_compress.errors import RecipeError, SchemeError
from tts_compress.recipes.formats import Activations, Algorithm, Observer, Weights
from tts_compress.recipes.schemes import SCHEMES, find_scheme

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "Calibration",
    "CalibrationSet",
    "Format",
    "Recipe",
    "Rule",
    "find_recipe",
    "read_calibration_set",
    "schemes_of",
]

Format: TypeAlias = Literal["qdq", "qoperator"]
"""How an ONNX graph says `static`: `qdq` puts quantize-dequantize pairs around standard operators,
which every runtime reads; `qoperator` uses onnxruntime's own integer operators with nothing between
them, which is faster there and runs nowhere else."""

_ARITHMETIC = {
    Weights.FLOAT32: (Activations.NONE,),
    Weights.FLOAT16: (Activations.NONE, Activations.FLOAT16),
    Weights.BFLOAT16: (Activations.NONE, Activations.BFLOAT16),
    Weights.FLOAT8: (Activations.FLOAT8,),
    Weights.INT4: (Activations.NONE,),
    Weights.INT8: (Activations.NONE, Activations.DYNAMIC, Activations.STATIC),
}

_WEIGHTS_OF: dict[Algorithm, tuple[Weights, ...]] = {
    Algorithm.RTN: (),  # goes with all
    Algorithm.GPTQ: (Weights.INT4, Weights.INT8),
    Algorithm.INC_RTN: (Weights.INT4,),
    Algorithm.INC_GPTQ: (Weights.INT4,),
}


class Calibration(Config):
    """What is observed, and how a range is made of it."""

    set: str | None = None
    """A shipped calibration set or the path of a TOML file; bare graphs have none, because they
    are called with the arrays of a file."""

    observer: Observer = Field(default=Observer.PERCENTILE, strict=False)
    percentile: float = Field(default=99.99, gt=50, le=100)
    """Share of the observed magnitudes a range covers, in percent; only for `percentile`."""

    utterances: int = Field(default=64, ge=1)
    """How many texts of the set, or calls of the file, are used, from its beginning."""

    equalize: bool = False
    """Bring the channels of each tensor that is rounded to about the same range first, by factors
    that the convolutions before and behind it take over: exact in FP32, finer codes in integers.
    Takes a pass over the first calls more."""


class Rule(Config):
    """What happens to the modules whose dotted name matches."""

    match: str
    """An `fnmatch` pattern on module names such as `dec.resblocks.0.convs.1`."""

    weights: Weights = Field(default=Weights.FLOAT32, strict=False)
    activations: Activations = Field(default=Activations.NONE, strict=False)
    exclude: tuple[str, ...] = ()
    """Patterns of modules left in FP32 although `match` covers them."""

    inner: bool = False
    """Leave out operators that read an input of the graph."""

    channels: int = Field(default=1, ge=1)
    """Leave out weights with fewer channels than this on either side."""

    taps: int = Field(default=1, ge=1)
    """Leave out convolutions whose kernels have fewer taps than this along some axis."""

    operators: tuple[str, ...] = ()
    """Operator types the rule is about, ONNX's or torch's; empty means every type the technique
    supports."""

    group: int = Field(default=64, ge=16)
    """Inputs that share a scale, where weights have four bits; of a convolution inputs × taps."""

    algorithm: Algorithm = Field(default=Algorithm.RTN, strict=False)
    """How the codes of linear layers are chosen: in four bits, and `gptq` also in `int8`. Other
    layers are rounded to nearest."""

    @model_validator(mode="after")
    def _consistent(self) -> Rule:
        allowed = _ARITHMETIC[self.weights]
        if self.activations not in allowed:
            raise ValueError(
                f"activations {self.activations!r} do not go with weights {self.weights!r}; "
                f"accepted: {', '.join(allowed)}"
            )
        bits = _WEIGHTS_OF[self.algorithm]
        if bits and self.weights not in bits:
            raise ValueError(
                f"algorithm {self.algorithm!r} does not go with weights {self.weights!r}; "
                f"accepted: {', '.join(bits)}"
            )
        return self

    def covers(self, module: str, operator: str) -> bool:
        """Return whether this rule decides about an operator of a module."""
        return fnmatchcase(module, self.match) and (
            not self.operators or operator in self.operators
        )

    def excludes(self, module: str) -> bool:
        """Return whether a covered module is left in FP32."""
        return any(fnmatchcase(module, pattern) for pattern in self.exclude)


class Recipe(ConfigFile):
    """One scheme for one family; of several rules that cover a module the first decides."""

    family: str
    scheme: str
    summary: str
    format: Format = "qdq"
    real_sums: bool = False
    """Add up in FP32 what leaves the integers, and let convolutions that only such a sum reads
    answer in FP32: less noise, a little slower. A matter of `qoperator`; the portable form rounds
    only around the operators that rules name."""

    calibration: Calibration | None = None
    component: tuple[Rule, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _calibrated_when_needed(self) -> Recipe:
        static = any(rule.activations == Activations.STATIC for rule in self.component)
        observed = static or any(rule.algorithm.endswith("gptq") for rule in self.component)
        if observed and self.calibration is None:
            raise ValueError(
                "a rule with static activations, or an algorithm that observes ('gptq', "
                "'inc-gptq'), needs a [calibration] table"
            )
        learned = any(scheme.trained for scheme in SCHEMES if scheme.name == self.scheme)
        if not observed and not learned and self.calibration is not None:
            raise ValueError(
                "[calibration] is given, but no rule has static activations, or an algorithm that "
                "observes ('gptq', 'inc-gptq'), and nothing is trained"
            )
        if not static and self.format == "qoperator":
            raise ValueError(
                "format 'qoperator' is a form of static activations, which no rule has; "
                "leave the format out"
            )
        return self


class CalibrationSet(ConfigFile):
    """Texts on which activations are observed; never evaluation texts."""

    name: str
    language: str
    """An espeak-ng voice name, such as `en-us`."""

    texts: tuple[str, ...] = Field(min_length=1)
    card: Card


def find_recipe(family: str, scheme: str, recipe: Recipe | str | Path | None = None) -> Recipe:
    """Return the recipe that applies a scheme to a family, or the user's own if one is given.

    Args:
        family: Of the model.
        scheme: What to do to it.
        recipe: A shipped name, a TOML file, or a recipe that was changed by `model_copy`, which
            is checked here.

    Raises:
        SchemeError: The scheme is unknown or the family has no recipe for it.
        RecipeError: The recipe is malformed or made for another family.
    """
    find_scheme(scheme)
    if recipe is None:
        if scheme not in schemes_of(family):
            known = ", ".join(schemes_of(family)) or "none"
            raise SchemeError(f"no scheme {scheme!r} for family {family!r}; available: {known}")
        recipe = f"{family}-{scheme}"
    if isinstance(recipe, Recipe):
        found, name = _checked(recipe), f"{recipe.family}-{recipe.scheme}"
    else:
        found, name = read_config(data_file("calib/recipes", str(recipe)), Recipe), str(recipe)
    if found.family != family:
        raise RecipeError(f"recipe '{name}' is for family {found.family!r}, not {family!r}")
    if found.scheme != scheme:
        raise RecipeError(f"recipe '{name}' is for scheme {found.scheme!r}, not {scheme!r}")
    return found


def _checked(recipe: Recipe) -> Recipe:
    """Return a recipe that was made in a program; `model_copy` takes any value unseen."""
    try:
        return Recipe.model_validate_json(recipe.model_dump_json(warnings=False))
    except ValidationError as error:
        raise RecipeError(f"not a valid recipe: {describe_problems(error)}") from error
    except ValueError as error:  # a value that JSON does not know
        raise RecipeError(f"not a valid recipe: {error}") from error


def schemes_of(family: str) -> list[str]:
    """Return the names of the schemes a family has a shipped recipe for, sorted."""
    prefix = f"{family}-"
    return [n.removeprefix(prefix) for n in data_names("calib/recipes") if n.startswith(prefix)]


def read_calibration_set(name: str) -> CalibrationSet:
    """Return a shipped calibration set, or the one in a user's TOML file.

    Raises:
        RecipeError: There is none of that name, or the file is malformed.
    """
    return read_config(data_file("calib/sets", name), CalibrationSet)
