"""Groups of layers that get one format, by their modules' names."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tts_compress.errors import RecipeError


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
