"""A recipe: the rules by which one scheme applies to a family, and groups of layers for rules.

A family's file in `calib/recipes` has its components once, and a table for each scheme.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import Field, ValidationError, model_validator

from tts_compress.config import (
    Card,
    Config,
    ConfigFile,
    data_file,
    data_names,
    describe_problems,
    parse_config,
    read_config,
    read_table,
)
from tts_compress.errors import RecipeError, SchemeError
from tts_compress.recipes.formats import (
    CALIBRATED,
    SCHEMES,
    Activations,
    Algorithm,
    Observer,
    Quality,
    Weights,
    find_scheme,
)

Format: TypeAlias = Literal["qdq", "qdq16", "qoperator"]
"""Forms of `static` in an ONNX graph: `qdq` puts quantize-dequantize pairs around standard
operators, which every runtime reads; `qdq16` does so with activations in 16 bits, which NPUs
multiply with weights in 8 and CPUs compute in FP32, and around all else that is local in time;
`qoperator` uses onnxruntime's own integer operators with nothing between them, which is faster
there and runs nowhere else."""

_ARITHMETIC = {
    Weights.FLOAT32: (Activations.NONE,),
    Weights.FLOAT16: (Activations.NONE, Activations.FLOAT16),
    Weights.BFLOAT16: (Activations.NONE, Activations.BFLOAT16),
    Weights.FLOAT8: (Activations.FLOAT8,),
    Weights.INT16: (Activations.NONE,),
    Weights.INT12: (Activations.NONE,),
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

    skip_smallest: float = Field(default=0.0, ge=0, lt=1)
    """Leave out the smallest weights of a model, up to this share of all: their errors count as
    much as those of the largest, and more bits for them cost the least."""

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

    def for_sizes(self, sizes: Iterable[int]) -> "Recipe":
        """Return the recipe for a model with weight tensors of so many weights each."""
        ascending = sorted(sizes)
        if not (any(ascending) and any(rule.skip_smallest for rule in self.component)):
            return self
        sums = list(accumulate(ascending))

        def resolved(rule: Rule) -> Rule:
            if not rule.skip_smallest:
                return rule
            skipped = sum(total <= rule.skip_smallest * sums[-1] for total in sums)
            least = max(rule.min_weights, ascending[skipped])
            return rule.model_copy(update={"min_weights": least, "skip_smallest": 0.0})

        return self.model_copy(update={"component": tuple(map(resolved, self.component))})

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
    """Where the texts come from; all shipped sets have one."""


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


class _Component(Coverage):
    """Modules that schemes treat alike; where several cover a module, the first decides."""

    match: str | tuple[str, ...]
    """Patterns on dotted module names, as in a rule."""

    def rules(self, form: str | Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the rules, one per pattern, that a format makes of the component.

        Args:
            form: "int8 dynamic": weights and, if not FP32, activations; or a table of such a
                `format` and further keys of a rule; or "skip" for none.
        """
        if form == "skip":
            return
        extra = {"format": form} if isinstance(form, str) else dict(form)
        weights, _, activations = str(extra.pop("format", "float32")).partition(" ")
        named = {"weights": weights, "activations": activations or "none"}
        patterns = (self.match,) if isinstance(self.match, str) else self.match
        for pattern in patterns:
            stated = self.model_dump(mode="json", exclude_defaults=True)
            yield {**stated, "match": pattern, **named, **extra}


class _Scheme(Config):
    """One scheme of the family."""

    summary: str
    base: str | None = None
    """The scheme to start from, such as `int8` for one that trains it; its keys hold where this
    table has none of its own."""

    format: str | None = None
    quality: str | None = None
    float_residuals: bool | None = None
    formats: dict[str, str | dict[str, Any]] | None = None
    """Format of each component, by a pattern on its name, the first that matches; `skip` and no
    pattern at all leave its modules to the components below."""

    calibration: dict[str, Any] = Field(default_factory=dict)
    """Keys that differ from the family's calibration."""


class _FamilyFile(ConfigFile):
    """All recipes of one family."""

    family: str
    base: str | None = None
    """The family whose components, schemes and settings hold where this file has none."""

    calibration: dict[str, Any] = Field(default_factory=dict)
    """Settings of calibration, for the schemes that calibrate or train."""

    component: dict[str, _Component] = Field(default_factory=dict)
    scheme: dict[str, _Scheme] = Field(default_factory=dict)

    def resolve(self, name: str, path: Path) -> Recipe:
        """Return the recipe of a scheme."""
        if name not in self.scheme:
            names = ", ".join(sorted(self.scheme)) or "none"
            raise SchemeError(f"no scheme {name!r} for family {self.family!r}; available: {names}")
        table = self._inherited(name, path)
        formats, calibration = table.pop("formats", {}), table.pop("calibration", {})
        rules: list[dict[str, Any]] = []
        for key, part in self.component.items():
            fitting = (form for pattern, form in formats.items() if fnmatchcase(key, pattern))
            rules += part.rules(next(fitting, "skip"))
        if find_scheme(name).trained or any(
            rule["activations"] in CALIBRATED or str(rule.get("algorithm")).endswith("gptq")
            for rule in rules
        ):
            table["calibration"] = self.calibration | calibration
        table |= {"version": 1, "family": self.family, "scheme": name, "component": rules}
        return parse_config(json.dumps(table), Recipe, f"'{path}', scheme {name!r},")

    def _inherited(self, name: str, path: Path) -> dict[str, Any]:
        """Return the keys of a scheme and of the schemes it is based on."""
        chain: list[str] = []
        following: str | None = name
        while following is not None:
            if following not in self.scheme or following in chain:
                raise RecipeError(
                    f"'{path}': scheme {name!r} has no valid base {following!r}; "
                    f"accepted: {', '.join(set(self.scheme) - {*chain, name}) or 'none'}"
                )
            chain.append(following)
            following = self.scheme[following].base
        table: dict[str, Any] = {"calibration": {}}
        for each in reversed(chain):
            scheme, without = self.scheme[each], {"base", "calibration"}
            table |= scheme.model_dump(mode="json", exclude=without, exclude_unset=True)
            table["calibration"] |= scheme.calibration
        return table


def find_recipe(family: str, scheme: str, recipe: Recipe | str | Path | None = None) -> Recipe:
    """Return the recipe that applies a scheme to a family, or the user's own if one is given.

    Args:
        family: The model's family.
        scheme: The scheme's name, as `find_scheme` takes it.
        recipe: A TOML file of one recipe or of a family's recipes, or a recipe that was changed
            by `model_copy`, which is checked here.

    Returns:
        The recipe; without `calibration` where nothing in it is chosen from data.

    Raises:
        SchemeError: The scheme is unknown or the family has no recipe for it.
        RecipeError: The recipe is malformed or made for another family.
    """
    scheme = find_scheme(scheme, schemes_of(family)).name
    if isinstance(recipe, Recipe):
        recipe, name = _checked(recipe), f"{recipe.family}-{recipe.scheme}"
    else:
        if recipe is None and family not in data_names("calib/recipes"):
            raise SchemeError(f"no scheme {scheme!r} for family {family!r}; available: none")
        name = family if recipe is None else str(recipe)
        recipe = _read(data_file("calib/recipes", name), scheme)
    if recipe.family != family:
        raise RecipeError(f"recipe '{name}' is for family {recipe.family!r}, not {family!r}")
    if recipe.scheme != scheme:
        raise RecipeError(f"recipe '{name}' is for scheme {recipe.scheme!r}, not {scheme!r}")
    return recipe if recipe.uses_calibration else recipe.model_copy(update={"calibration": None})


def scheme_of(recipe: str | Path) -> str | None:
    """Return the scheme of a TOML file of one recipe; None for a file of a family's recipes."""
    stated = json.loads(read_table(data_file("calib/recipes", str(recipe)))).get("scheme")
    return stated if isinstance(stated, str) else None


def _read(path: Path, scheme: str) -> Recipe:
    text = read_table(path)
    table = json.loads(text)
    if "base" in table or isinstance(table.get("scheme"), dict):
        return _with_base(parse_config(text, _FamilyFile, f"'{path}'")).resolve(scheme, path)
    return parse_config(text, Recipe, f"'{path}'")


def _with_base(file: _FamilyFile) -> _FamilyFile:
    """Return a family's recipes with those of the family they are based on."""
    if file.base is None:
        return file
    base = _with_base(read_config(data_file("calib/recipes", file.base), _FamilyFile))
    return file.model_copy(
        update={
            "calibration": base.calibration | file.calibration,
            "component": base.component | file.component,
            "scheme": base.scheme | file.scheme,
        }
    )


def _checked(recipe: Recipe) -> Recipe:
    """Return a recipe that was made in a program; `model_copy` takes any value unseen."""
    try:
        return Recipe.model_validate_json(recipe.model_dump_json(warnings=False))
    except ValueError as error:  # also of a value that JSON does not know
        problem = describe_problems(error) if isinstance(error, ValidationError) else error
        raise RecipeError(f"not a valid recipe: {problem}") from error


def schemes_of(family: str) -> list[str]:
    """Return the names of the schemes a family has a shipped recipe for, sorted."""
    if family not in data_names("calib/recipes"):
        return []
    return sorted(_with_base(read_config(data_file("calib/recipes", family), _FamilyFile)).scheme)
