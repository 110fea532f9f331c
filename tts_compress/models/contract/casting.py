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


def cast(value: Any, expected: GraphInput, source: str | None) -> npt.NDArray[np.generic]:
    """Return a value with the type of a graph's input.

    Args:
        value: Numbers of the contract or the text, or what a graph returned.
        expected: The input.
        source: Name of the output that returned the value; None for numbers of the contract,
            whose whole reals may become integers.

    Raises:
        ModelError: An output is of another kind than the input, or the input's type does not hold
            a value: an integer must stay the same, a finite real finite.
    """
    array, wanted = np.asarray(value), expected.dtype
    named = "a value of the contract" if source is None else f"output '{source}' {array.dtype}"
    kinds = {"i" if dtype.kind == "u" else dtype.kind for dtype in (array.dtype, wanted)}
    if source is not None and kinds not in ({"i"}, {"f"}) and not np.can_cast(array.dtype, wanted):
        raise ModelError(
            f"{named} cannot be input '{expected}': integers stay integers and reals reals; name "
            "another output, or export the graph with that type"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        changed = array.astype(wanted)
    kept = np.isfinite(changed) | ~np.isfinite(array) if wanted.kind == "f" else changed == array
    if not kept.all():
        wrong = array[~kept].flat[0]
        raise ModelError(f"{named} is {wrong!s:.40}, which input '{expected}' does not hold")
    return changed
