"""Formats of groups of layers, choices of them as recipes, and those that a search begins with."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf
from typing import Any

from tts_compress.compression.budget import Option, select
from tts_compress.errors import RecipeError
from tts_compress.recipes.formats import Activations, Weights, find_scheme
from tts_compress.recipes.recipe import Group, Recipe, Rule, exact_pattern, find_recipe, schemes_of
from tts_compress.search.outcome import Sensitivity

FLOAT32 = "float32"
"""The name of the format of a layer that stays as it is."""

_KEYS = ("weights", "activations", "group_size", "algorithm")
"""Keys of a rule that say what becomes of a layer, not which one it is about."""

_OF_OTHER_PROCESSORS = {Activations.FLOAT16, Activations.BFLOAT16, Activations.FLOAT8}
"""Arithmetic that onnxruntime does not have on a CPU: it computes in FP32, and casts."""


@dataclass(frozen=True, slots=True)
class Format:
    """A storage and an arithmetic of layers."""

    keys: tuple[tuple[str, Any], ...]
    """Keys of a rule that differ from their defaults."""

    @property
    def name(self) -> str:
        """The words of the keys, such as `int8 static`."""
        return " ".join(str(value) for _, value in self.keys) or FLOAT32

    @property
    def arithmetic(self) -> str:
        """The arithmetic of a layer."""
        return str(dict(self.keys).get("activations", Activations.NONE))

    @property
    def weights(self) -> str:
        """The type that stores its weights."""
        return str(dict(self.keys).get("weights", Weights.FLOAT32))

    def rules(self, pattern: str) -> list[Rule]:
        """Return the rules that give it to modules.

        What has no kernel in the arithmetic, or no form in four bits, stores its weights in INT8.
        """
        rules = [Rule(match=pattern, **dict(self.keys))]
        computes = self.arithmetic in {Activations.STATIC, Activations.DYNAMIC}
        if computes and self.weights == Weights.INT4:
            arithmetic = Activations(self.arithmetic)
            rules.append(Rule(match=pattern, weights=Weights.INT8, activations=arithmetic))
        if computes or self.weights == Weights.INT4:
            rules.append(Rule(match=pattern, weights=Weights.INT8))
        return rules


def find_formats(family: str, names: Sequence[str] = ()) -> tuple[Format, ...]:
    """Return the formats that a family's recipes use, those of the most bits first.

    Args:
        family: The model's family.
        names: The formats to return. By default all but those whose arithmetic a CPU lacks, and
            `bfloat16`, which is as large as `float16` and coarser.
    """
    formats: dict[str, Format] = {}
    for scheme in schemes_of(family):
        if find_scheme(scheme).trained:
            continue
        for rule in find_recipe(family, scheme).component:
            form = _format_of(rule)
            if form.weights != Weights.FLOAT32:
                formats.setdefault(form.name, form)
    for name in names:
        if name not in formats:
            available = ", ".join(map(repr, formats)) or "none"
            raise RecipeError(f"no format {name!r} for family {family!r}; available: {available}")
    usual = [
        form
        for form in formats.values()
        if form.arithmetic not in _OF_OTHER_PROCESSORS and form.weights != Weights.BFLOAT16
    ]
    kept = [form for form in formats.values() if form.name in names] if names else usual
    bits = {form: int("".join(filter(str.isdigit, form.weights))) for form in kept}
    return tuple(sorted(kept, key=lambda form: (-bits[form], form.name)))


def _format_of(rule: Rule) -> Format:
    values = {key: getattr(rule, key) for key in _KEYS}
    defaults = {key: Rule.model_fields[key].default for key in _KEYS}
    return Format(tuple((key, value) for key, value in values.items() if value != defaults[key]))


SCHEME = "mixed"
"""The scheme that recipes of a search belong to."""

BASELINE = "int8"
"""The scheme that a search begins with."""

AS_BASELINE = f"scheme {BASELINE}"
"""The name of the formats that the baseline's recipe gives to a group's layers."""

Choice = Mapping[str, str]
"""The name of a format for each group's; what is missing stays in FP32."""


@dataclass(frozen=True, slots=True)
class Space:
    """Everything that can be chosen."""

    base: Recipe
    """The baseline's; its form and calibration hold for all choices."""

    groups: tuple[Group, ...]
    formats: Mapping[str, tuple[Format, ...]]
    """Formats that change something in each group."""

    def names(self, group: str) -> list[str]:
        """Return the names of what a group can be given, FP32 first."""
        return [FLOAT32, AS_BASELINE, *(form.name for form in self.formats[group])]

    def baseline(self) -> dict[str, str]:
        """Return the choice that is the baseline."""
        return {group.name: AS_BASELINE for group in self.groups}

    def recipe(self, choice: Choice) -> Recipe:
        """Return the recipe of a choice, which is whole and checked."""
        rules: list[Rule] = []
        for group in self.groups:
            name = choice.get(group.name, FLOAT32)
            if name == FLOAT32:
                # Written down, because a pattern further below may match its layers as well.
                rules += [Rule(match=pattern) for pattern in group.patterns]
                continue
            if name == AS_BASELINE:
                rules += self._as_baseline(group)
                continue
            form = next(f for f in self.formats[group.name] if f.name == name)
            rules += [rule for pattern in group.patterns for rule in form.rules(pattern)]
        if all(rule.weights == Weights.FLOAT32 for rule in rules):
            raise ValueError("every group is in FP32")
        static = any(rule.activations == Activations.STATIC for rule in rules)
        observed = static or any(rule.algorithm.endswith("gptq") for rule in rules)
        table = {
            "version": 1,
            "family": self.base.family,
            "scheme": SCHEME,
            "summary": "formats chosen for each group of layers by tts-compress search",
            "format": self.base.format if static else "qdq",
            "float_residuals": self.base.float_residuals and static,
            "calibration": self.base.calibration if observed else None,
            "component": [rule.model_dump(mode="json") for rule in rules],
        }
        return Recipe.model_validate(table, strict=False)

    def _as_baseline(self, group: Group) -> list[Rule]:
        """Return the baseline's rules, about the modules of a group alone."""
        rules = []
        for rule in self.base.component:
            covered = [module for module in group.modules if fnmatchcase(module, rule.match)]
            whole = len(covered) == len(group.modules)
            patterns = group.patterns if whole else map(exact_pattern, covered)
            rules += [rule.model_copy(update={"match": pattern}) for pattern in patterns]
        return rules


def recipe_toml(recipe: Recipe) -> str:
    """Return a recipe as a TOML file; what is as by default is left out."""
    # In JSON strings, numbers, truth values and lists are written as in TOML.
    content = recipe.model_dump(mode="json", exclude_defaults=True)
    rules, calibration = content.pop("component"), content.pop("calibration", None)
    lines = _lines({"version": recipe.version} | content)
    if calibration is not None:
        lines += ["", "[calibration]", *_lines(calibration)]
    for rule in rules:
        lines += ["", "[[component]]", *_lines({"match": rule.pop("match")} | rule)]
    return "\n".join(lines) + "\n"


def _lines(table: Mapping[str, object]) -> list[str]:
    return [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in table.items()]


_LEVELS = (1.0, 1.4, 0.7, 2.0, 0.5, 3.0, 1.2, 0.85, 4.0, 1.7, 2.5, 0.3, 6.0, inf)
"""Predicted damage of the first choices, in shares of the bound; those that come nearest first.
What is predicted is more often too much than too little."""


@dataclass(frozen=True, slots=True)
class NamedOption(Option):
    """A format of a group, by its name."""

    form: str


Options = Mapping[str, Sequence[NamedOption]]
"""Formats that each group can have, by the group's name; FP32 among them."""


def find_options(sensitivity: Sensitivity, *, by_time: bool, bound: float) -> Options:
    """Return the energy and saving of every format of every group."""
    options: dict[str, list[NamedOption]] = {}
    for row in sensitivity.rows:
        several = options.setdefault(row.group, [NamedOption((), (0.0,), 0.0, FLOAT32)])
        saved = row.saved_bytes / sensitivity.reference_bytes
        if by_time:
            saved = row.saved_ms / sensitivity.reference_ms
        several.append(NamedOption((), (row.damage.energy(bound),), saved, row.format))
    return options


def selections(options: Options) -> list[dict[str, str]]:
    """Return the choices that save most within levels of predicted damage, each once."""
    choices = [
        {group: option.form for group, option in select(options, [level**2]).items()}
        for level in _LEVELS
    ]
    unique = {tuple(choice.items()): choice for choice in choices}
    return [choice for choice in unique.values() if {*choice.values()} != {FLOAT32}]
