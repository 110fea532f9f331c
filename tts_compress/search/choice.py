"""A choice: the format of each group, and the recipe that says so."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tts_compress.recipes.formats import Activations, Weights
from tts_compress.recipes.recipe import Recipe, Rule
from tts_compress.search.formats import FLOAT32, Format, Group, exact_pattern

SCHEME = "mixed"
"""The scheme that recipes of a search belong to."""

BASELINE = "int8"
"""The scheme that a search begins with and that sets the damage that is admitted."""

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
        """Return the recipe of a choice, which is whole and checked.

        Raises:
            ValueError: The choice compresses nothing.
        """
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
            "calibration": _calibration(self.base) if observed else None,
            "component": [rule.model_dump(mode="json") for rule in rules],
        }
        return Recipe.model_validate(table, strict=False)

    def _as_baseline(self, group: Group) -> list[Rule]:
        """Return the baseline's rules, about the modules of a group alone."""
        found = []
        for rule in self.base.component:
            own = [module for module in group.modules if fnmatchcase(module, rule.match)]
            whole = len(own) == len(group.modules)
            patterns = group.patterns if whole else map(exact_pattern, own)
            found += [rule.model_copy(update={"match": pattern}) for pattern in patterns]
        return found


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


def _calibration(base: Recipe) -> dict[str, object] | None:
    return None if base.calibration is None else base.calibration.model_dump(mode="json")
