"""The time of each group of layers, by onnxruntime's profiles of whole graphs."""

from collections.abc import Mapping, Sequence

import onnx

from tts_compress.evaluation.metric import Record
from tts_compress.onnx.profile import kernel_seconds
from tts_compress.recipes.recipe import Rule
from tts_compress.search.damage import Listener
from tts_compress.search.workbench import Workbench

_ROUNDS = 3
"""Runs of which the fastest counts."""


class Times(Record):
    """Milliseconds of the kernels of each group, over all texts."""

    reference: dict[str, float]
    """In FP32; under an empty name those of all other operators."""

    formats: dict[str, dict[str, float]]
    """Where every group has the format, by its name."""

    @property
    def reference_ms(self) -> float:
        """Time of all kernels in FP32."""
        return sum(self.reference.values())

    def saved_ms(self, group: str, form: str) -> float:
        """Return the time that a group takes less of in a format than in FP32."""
        return self.reference[group] - self.formats[form][group]


def profile_formats(
    bench: Workbench,
    listener: Listener,
    groups: Sequence[str],
    rules: Mapping[str, Sequence[Rule]],
) -> Times:
    """Profile a voice in FP32 and with everything in each format.

    A layer alone in integers also pays for the way into them and out again; with its neighbours it
    does not. So formats are compared with all layers in them.

    Args:
        bench: Converts the voice.
        listener: Has the texts that are spoken.
        groups: Their names.
        rules: The rules that give each format to every group.
    """
    found = {}
    for name, own in rules.items():
        whole = bench.recipe.model_copy(update={"component": tuple(own)})
        found[name] = _by_group(bench.convert(whole), listener, groups)
    return Times(reference=_by_group(bench.model.graph(), listener, groups), formats=found)


def _by_group(
    graph: onnx.ModelProto, listener: Listener, groups: Sequence[str]
) -> dict[str, float]:
    """Return milliseconds by group, and under an empty name those of all other operators."""
    spent = dict.fromkeys([*groups, ""], 0.0)
    found = kernel_seconds(graph, listener.feeds, "the graph", threads=1, rounds=_ROUNDS)
    for operator, seconds in found.items():
        spent[group_of(operator, groups)] += seconds * 1e3
    return spent


def group_of(operator: str, groups: Sequence[str]) -> str:
    """Return the group that an operator belongs to by its name; empty where there is none.

    Names hold the module, as `/dec/ups.0/ConvTranspose` or `dec.ups.0.weight.dequantized`; the
    longest group's name in it counts.
    """
    dotted = f".{operator.replace('/', '.')}.".replace("..", ".")
    found = [group for group in groups if f".{group.rstrip('.*')}." in dotted]
    return max(found, key=len, default="")
