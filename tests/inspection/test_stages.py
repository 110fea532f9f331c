"""Memory by part of a voice that is cut in time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tts_compress.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tts_compress.models.base import GraphModel


def test_every_weight_is_of_one_part(
    tiny: GraphModel,
    tiny_path: Path,
    compressed: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of the decoder lie in the stages, and take a quarter where they are integers."""
    bytes_of = []
    for model in (tiny_path, compressed("int8")):
        assert main(["inspect", str(model), "--stages", "--no-time", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        stages = [stage["weight_bytes"] for stage in shown["stages"]]
        parts = {part["name"]: part["size_bytes"] for part in shown["components"]}
        assert sum(stages) >= parts["dec"]
        assert shown["encoder"]["weight_bytes"] >= parts["enc_p"]
        bytes_of.append(sum(stages))
    whole = sum(tensor.ByteSize() for tensor in tiny.graph().graph.initializer)
    assert bytes_of[0] < whole
    assert bytes_of[1] < 0.6 * bytes_of[0]


def test_the_table_has_weights_context_and_largest_tensor(
    tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tiny_path), "--stages", "--no-time"]) == 0
    (head,) = (line for line in capsys.readouterr().out.splitlines() if "stage reads" in line)
    for column in ("before", "behind", "makes", "values a step, at most", "weights"):
        assert column in head
