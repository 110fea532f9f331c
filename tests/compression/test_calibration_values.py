"""Calibration that a program gives: calls of a graph, and texts, in the place of files."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graphs import Values, make_model, make_node
from tts_compress.compression import compress, is_feeds
from tts_compress.errors import ModelError
from tts_compress.models.base import GraphModel
from tts_compress.models.feeds import write_calls


def test_a_file_of_arrays_is_known_by_the_end_of_its_name(tmp_path: Path) -> None:
    assert is_feeds("feeds.npz")
    assert is_feeds(tmp_path / "feeds.npz")
    assert not is_feeds(tmp_path / "feeds.npz" / "texts.toml")
    assert not is_feeds(None)


def test_equal_calls_are_equal_files(tmp_path: Path) -> None:
    """Their checksum is in the manifest, which the time of writing would change."""
    with zipfile.ZipFile(
        write_calls([{"mel": np.zeros((1, 12, 9), np.float32)}] * 2, tmp_path / "a.npz")
    ) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.namelist() == ["0/mel.npy", "1/mel.npy"]


@pytest.mark.slow
def test_texts_of_a_program_take_the_place_of_a_set(tiny: GraphModel) -> None:
    texts = (f"Text {number}." for number in range(70))
    small: Any = compress(tiny, "int8-static", calibration=texts)
    record = small.manifest.calibration
    assert record is not None
    assert (record.set, record.utterances) == ("texts", 64)


def test_call_that_cannot_be_run_is_told_by_its_number(tmp_path: Path) -> None:
    weights = {"table": np.ones((4, 16)), "w": np.ones((32, 16, 3))}
    nodes = [
        make_node("Gather", "table i", "rows"),
        make_node("Transpose", "rows", "h", perm=[0, 2, 1]),
        make_node("Conv", "h w", "a"),
        make_node("Relu", "a", "y"),
    ]
    inputs: Values = {"i": (onnx.TensorProto.INT64, [1, "T"])}
    onnx.save(make_model(nodes, inputs, {"y": None}, weights), tmp_path / "rows.onnx")
    calls = [{"i": np.full((1, 9), index)} for index in (3, 4)]
    with pytest.raises(ModelError, match="'the graph with calibration call 1' cannot be run"):
        compress(f"onnx:{tmp_path / 'rows.onnx'}", "int8-static", calibration=calls)
