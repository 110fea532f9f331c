"""A family's file in `calib/recipes`: its components once, and a table for each scheme."""

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from tts_compress.config import (
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
from tts_compress.recipes.formats import CALIBRATED, find_scheme
from tts_compress.recipes.recipe import Coverage, Recipe


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
