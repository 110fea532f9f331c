"""Voices of several graphs: spoken, compressed, timed, blamed and trained graph by graph."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress.artifact import TrainingRecord
from tts_compress.compression import compress, compress_trained
from tts_compress.compression.hybrid import compressed_components, hybrids
from tts_compress.errors import ModelError
from tts_compress.inspection.components import time_shares
from tts_compress.models import load
from tts_compress.qat.options import TrainingOptions, TrainingRun
from tts_compress.search.sensitivity import single_graph


def test_every_graph_of_a_chain_is_compressed_and_in_the_record(
    make_matcha: Callable[..., Path], tmp_path: Path, ids_set: Path
) -> None:
    path = make_matcha()
    original: Any = load(path)
    small: Any = compress(original, "int8", calibration=ids_set)
    assert [*small.components()] == ["encoder", "decoder", "hifigan_v2"]
    saved: Any = load(small.save(tmp_path / "saved"))
    for name in (path.name, "hifigan_v2.onnx"):
        sizes = [(folder / name).stat().st_size for folder in (path.parent, tmp_path / "saved")]
        assert sizes[1] < 0.8 * sizes[0]
    manifest = saved.manifest
    graphs = list((tmp_path / "saved").glob("*.onnx"))
    assert manifest.size_bytes == sum(p.stat().st_size for p in graphs)
    assert any(layer.module == "hifigan_v2:generator.pre" for layer in manifest.layers)
    assert load(tmp_path / "saved" / path.name).sample_rate == 22050
    text = "ids: 5 9 12 30 7"
    assert np.array_equal(
        small.synthesize(text, seed=1).samples, saved.synthesize(text, seed=1).samples
    )


@pytest.mark.parametrize("system", ["matcha", pytest.param("supertonic", marks=pytest.mark.slow)])
def test_every_graph_of_a_chain_has_its_share_of_the_time(
    request: pytest.FixtureRequest, system: str
) -> None:
    """In a loop of each round; the shares of all add up."""
    path = request.getfixturevalue(f"make_{system}")()
    voice: Any = load(path)
    # A graph of a millisecond may be interrupted: other work on the machine is no finding.
    measured = [time_shares(voice, "ids: 5 9 12 30 7") for _ in range(3)]
    graphs = {graph.stem for graph in path.parent.glob("*.onnx") if graph != path}
    for shares in measured:
        assert sum(shares.values()) == pytest.approx(1)
        assert shares.keys() == {*voice.components(), "other"}
        assert all(shares[graph] > 0 for graph in graphs)
    if system == "supertonic":
        largest = [max(shares, key=lambda name: shares[name]) for shares in measured]
        assert "vector_estimator" in largest


@pytest.mark.parametrize(
    ("system", "graphs"),
    [
        ("matcha", ["hifigan_v2"]),
        pytest.param(
            "supertonic", ["text_encoder", "vector_estimator", "vocoder"], marks=pytest.mark.slow
        ),
    ],
)
def test_each_graph_of_a_chain_is_blamed_alone(
    request: pytest.FixtureRequest, tmp_path: Path, system: str, graphs: list[str]
) -> None:
    """The reference with one graph of the candidate, and with one component of the first graph."""
    path = request.getfixturevalue(f"make_{system}")()
    small: Any = compress(load(path), "int8-dynamic")
    if system == "supertonic":
        small = load(small.save(tmp_path / "small"))
    names = compressed_components(small)
    assert names[-len(graphs) :] == graphs
    made = dict(hybrids(load(path), small, [names[0], *graphs]))
    text = "ids: 5 9 12 30 7"
    expected = load(path).synthesize(text, seed=1).samples
    for name, hybrid in made.items():
        saved: Any = load(hybrid.save(tmp_path / name))
        changed = [
            graph.stem
            for graph in sorted(path.parent.glob("*.onnx"))
            if graph.stat().st_size != saved.parts[""].path.with_name(graph.name).stat().st_size
        ]
        assert changed == [name if name in graphs else path.stem]
        assert {layer.module.split(":")[0].split(".")[0] for layer in saved.manifest.layers} == {
            name
        }
        error = np.abs(saved.synthesize(text, seed=1).samples - expected).max()
        assert name not in graphs or 0 < error < 0.2 * np.abs(expected).max()


def test_a_chain_is_blamed_by_its_own_original(tiny: Any, make_matcha: Callable[..., Path]) -> None:
    small = compress(load(make_matcha()), "int8-weight-only")
    with pytest.raises(ModelError, match="has no graph 'hifigan_v2'"):
        list(hybrids(tiny, small, ["hifigan_v2"]))


def test_a_chain_is_trained_graph_by_graph(
    make_matcha: Callable[..., Path], tmp_path: Path, ids_set: Path
) -> None:
    pytest.importorskip("accelerate")
    run = TrainingRun(options=TrainingOptions(steps=2), folder=tmp_path / "work")
    small: Any = compress_trained(make_matcha(), calibration=ids_set, run=run)
    assert (tmp_path / "work" / "graph-2").is_dir()
    assert len(small.synthesize("ids: 5 6", seed=0).samples) == 9 * 64


@pytest.mark.slow
def test_graphs_in_a_loop_are_trained_and_those_of_durations_are_not(
    make_supertonic: Callable[..., Path], ids_set: Path
) -> None:
    pytest.importorskip("accelerate")
    run = TrainingRun(options=TrainingOptions(steps=2))
    original: Any = load(make_supertonic())
    small: Any = compress_trained(original, calibration=ids_set, run=run)
    assert isinstance(small.manifest.training, TrainingRecord)
    sizes = [len(voice.synthesize("Go on.", seed=0).samples) for voice in (original, small)]
    assert sizes[0] == sizes[1]


def test_a_chain_is_not_searched_layer_by_layer(make_matcha: Callable[..., Path]) -> None:
    with pytest.raises(ModelError, match=r"not a voice of a single ONNX graph"):
        single_graph(load(make_matcha()))
