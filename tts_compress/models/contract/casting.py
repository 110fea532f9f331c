"""Values brought to the type of a graph's input, where that changes none of them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tts_compress.errors import ModelError
from tts_compress.models.contract.inputs import Input, OutputInput
from tts_compress.models.feeds import GraphInput


def source_of(name: str, role: Input, step: int = 0) -> str | None:
    """Return the output that an input is given in a round of a loop; None for other values.

    Args:
        name: Name of the input.
        role: Its table in the contract.
        step: The round, from 0.
    """
    if step and role.next is not None:
        return role.next
    return role.output or name if isinstance(role, OutputInput) else None


def may_become(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Return True if outputs of a type may be inputs of another: integers stay integers."""
    whole = given.kind in "iu" and wanted.kind in "iu"
    return whole or given.kind == wanted.kind == "f" or np.can_cast(given, wanted, "safe")


def type_problem(named: str, expected: GraphInput) -> str:
    """Return what an error says of an output that an input cannot be given."""
    return (
        f"{named} cannot be input '{expected}': integers stay integers and reals reals; name "
        "another output, or export the graph with that type"
    )


def cast(value: Any, expected: GraphInput, source: str | None) -> npt.NDArray[np.generic]:
    """Return a value with the type of a graph's input.

    Args:
        value: Numbers of the contract or the text, or what a graph returned.
        expected: The input.
        source: Name of the output that returned the value; None for numbers of the contract,
            whose whole reals may become integers.

    Raises:
        ModelError: The type does not fit, or it does not hold a value: an integer must stay the
            same, a finite real finite.
    """
    array = np.asarray(value)
    named = "a value of the contract" if source is None else f"output '{source}' {array.dtype}"
    if source is not None and not may_become(array.dtype, expected.dtype):
        raise ModelError(type_problem(named, expected))
    if array.dtype == expected.dtype:
        return array
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            changed = array.astype(expected.dtype)
    except OverflowError:
        changed = np.zeros_like(array, expected.dtype)
    same = np.isfinite(changed) if expected.dtype.kind == "f" else changed == array
    if expected.dtype.kind == "f" and array.dtype.kind == "f":
        same |= ~np.isfinite(array)
    if not same.all():
        wrong = array[~same].flat[0]
        raise ModelError(f"{named} is {wrong!s:.40}, which input '{expected}' does not hold")
    return changed
