"""Recipes of a few rules."""

from typing import Any

from tts_compress.recipes.recipe import Calibration, Recipe, Rule


def make_recipe(*rules: dict[str, Any], **changes: Any) -> Recipe:
    """Return a recipe of rules, of all modules and 8 bits unless they state others."""
    component = [Rule.model_validate({"match": "*", "weights": "int8"} | rule) for rule in rules]
    stated: dict[str, Any] = {"version": 1, "family": "onnx", "scheme": "int8", "summary": "a test"}
    if any(rule.observes for rule in component):
        stated["calibration"] = Calibration()
    return Recipe(**(stated | {"component": tuple(component)} | changes))
