"""Voices whose graphs run in a loop, on what the others return, and finish on the host."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.texts import write_set
from tts_compress.compression import compress
from tts_compress.config import data_file
from tts_compress.errors import ArtifactError, ModelError, RecipeError
from tts_compress.models import load
from tts_compress.models.base import Speaking
from tts_compress.models.integers import count_integer_layers
from tts_compress.onnx.quantize.prepare import optimize

_TEXT = "Hello  there , “you” – e.g., me"


@pytest.fixture(scope="module")
def artifact(
    supertonic_files: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Return a function that returns a scheme's artifact, made once; do not write into it."""
    folder = tmp_path_factory.mktemp("artifacts")

    @cache
    def make(scheme: str) -> Path:
        voice = load(supertonic_files / "onnx" / "duration_predictor.onnx")
        options: dict[str, Any] = {}
        if scheme == "int8":
            texts = write_set(folder / "texts.toml", ["Go on.", "The rain stopped."])
            options = {"calibration": texts, "quality": "fast"}
        saved: Path = compress(voice, scheme, **options).save(folder / scheme)
        return saved

    return make


@pytest.mark.parametrize(
    "scheme",
    [
        None,
        *(pytest.param(s, marks=pytest.mark.slow) for s in ("int8", "int8-weight-only", "bf16")),
    ],
)
def test_its_own_package_speaks_an_artifact_as_we_do(
    supertonic_files: Path,
    artifact: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    scheme: str | None,
) -> None:
    """From a text: symbols, language, durations, eight steps, and vocoder, without noise."""
    client = pytest.importorskip("supertonic")
    folder = supertonic_files if scheme is None else artifact(scheme)
    voice: Any = load(folder / "onnx" / "duration_predictor.onnx")
    tts = client.TTS(model_dir=folder, auto_download=False, intra_op_num_threads=1)
    monkeypatch.setattr(np.random, "randn", lambda *shape: np.zeros(shape))
    for name in ("F1", "M1"):
        [samples], _ = tts.synthesize(_TEXT, voice_style=tts.get_voice_style(name), lang="en")
        spoken = voice.speaking_as(Speaking(speaker=name)).synthesize(_TEXT, seed=None).samples
        assert spoken.shape == samples.shape
        assert np.abs(spoken - samples).max() < 1e-3 * np.abs(samples).max()


def test_noise_is_equal_for_both_and_at_equal_times(
    make_supertonic: Callable[..., Path], artifact: Callable[[str], Path]
) -> None:
    """Also where one speaks longer than the other."""
    voice: Any = load(make_supertonic())
    small: Any = load(artifact("int8"))

    def noise(model: Any, text: str, seed: int) -> Any:
        [call, *_] = model.calibration_calls([text], seed=seed, part="vector_estimator")
        return call["noisy_latent"]

    drawn = noise(voice, "Go on.", 1)
    assert np.array_equal(drawn, noise(small, "Go on.", 1))
    longer = noise(voice, "Go on, as before.", 1)
    assert longer.shape[2] > drawn.shape[2]
    assert np.array_equal(drawn, longer[:, :, : drawn.shape[2]])
    assert not np.array_equal(drawn, noise(voice, "Go on.", 2))
    assert 0.9 < drawn.std() < 1.1


def test_what_decides_the_duration_stays_in_floats(
    make_supertonic: Callable[..., Path], artifact: Callable[[str], Path]
) -> None:
    """The whole first graph: no integers in it, so that both speak equally long."""
    voice: Any = load(make_supertonic())
    small: Any = load(artifact("int8"))
    first = [layer for layer in small.manifest.layers if ":" not in layer.module]
    assert first
    assert all(layer.decides_durations for layer in first if layer.operator != "Gather")
    assert {layer.activations for layer in first} == {"none"}
    assert any(layer.activations == "dynamic" for layer in small.manifest.layers)
    for text in ("Go on.", "The rain stopped an hour ago."):
        sizes = [len(model.synthesize(text, seed=0).samples) for model in (voice, small)]
        assert sizes[0] == sizes[1]


def test_characters_are_those_of_its_package(make_supertonic: Callable[..., Path]) -> None:
    core = pytest.importorskip("supertonic.core")
    path = make_supertonic()
    theirs = core.UnicodeProcessor(str(path.with_name("unicode_indexer.json")))
    voice: Any = load(path)
    for text in (_TEXT, "Ünïcode [or] not?", "a@b_c/d", "It’s “done”"):
        [call] = voice.calibration_calls([text], seed=0)
        # Accents that the vocabulary lacks are left out here, and -1 there.
        ids = [number for number in theirs([text], "en")[0][0].tolist() if number >= 0]
        assert call["text_ids"][0].tolist() == ids


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '[then.input.latent_mask]\nrole = "mask"\nsize = "latent"\n',
            "",
            r"'vector_estimator.onnx': input 'latent_mask float32 \[batch, 1, latent\]' of the "
            r"graph is unexplained; add a table \[then.input.latent_mask\] with a role",
        ),
        ("[size.latent]", "[size.frames]", r"no size is named 'latent'; add .*\[size.latent\]"),
        ('output = "duration"', 'output = "length"', "follows from the output 'length', but"),
        ("[then.input.text_emb]", "[then.input.text]", "no input 'text'; its inputs are noisy"),
        (
            '[then.input.text_emb]\nrole = "output"',
            '[then.input.text_emb]\nrole = "output"\noutput = "emb"',
            "is the output 'emb', but the graphs before it return duration, text_emb",
        ),
        ('next = "denoised_latent"', 'next = "latent"', "the graph has no output 'latent'"),
        ('[input.text_mask]\nrole = "mask"', '[input.text_mask]\nrole = "step"', "'step', which"),
        ("repeat = 8", "repeat = 0", "then.2?.?.*repeat.*greater than or equal to 1"),
        (
            'graph = "vocoder.onnx"',
            'graph = "text_encoder.onnx"',
            "'text_encoder.onnx': input 'style_ttl float32 .*' of the graph is unexplained",
        ),
    ],
)
def test_a_wrong_contract_of_a_chain_gets_one_line(
    make_supertonic: Callable[..., Path],
    refused: Callable[..., str],
    old: str,
    new: str,
    message: str,
) -> None:
    path = make_supertonic()
    text = data_file("calib/contracts", "supertonic").read_text(encoding="utf-8")
    assert old in text
    path.with_name("contract.toml").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises((RecipeError, ModelError), match=message):
        load(path)
    assert refused("inspect", path)


def test_damaged_voices_are_model_errors(make_supertonic: Callable[..., Path]) -> None:
    path = make_supertonic()
    style = path.parents[1] / "voice_styles" / "F1.json"
    whole = json.loads(style.read_text(encoding="utf-8"))
    for broken in ({}, {"style_dp": 1}, whole | {"style_dp": {"dims": [1, 9], "data": [[1]]}}):
        style.write_text(json.dumps(broken), encoding="utf-8")
        with pytest.raises(ModelError, match=r"F1.json' holds no array 'style_"):
            load(f"contract:{path}")


@pytest.mark.slow
def test_an_artifact_is_found_by_its_graph_and_its_folder(
    make_supertonic: Callable[..., Path], tmp_path: Path
) -> None:
    small: Any = compress(load(make_supertonic()), "int8-dynamic")
    folder = small.save(tmp_path / "out")
    for spec in (folder, folder / "onnx" / "duration_predictor.onnx"):
        found: Any = load(spec)
        assert found.manifest.scheme == "int8-dynamic"
        assert np.array_equal(
            found.synthesize("Go on.", seed=1).samples, small.synthesize("Go on.", seed=1).samples
        )
    moved = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    moved["files"]["../onnx/vocoder.onnx"] = moved["files"].pop("onnx/vocoder.onnx")
    (folder / "manifest.json").write_text(json.dumps(moved), encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"'../onnx/vocoder\.onnx' is not a plain"):
        load(folder)


def test_convnext_blocks_compute_in_integers_but_for_what_is_quicker_in_floats(
    artifact: Callable[[str], Path],
) -> None:
    """Pointwise convolutions are products of integers; onnxruntime computes each GELU at once."""
    small: Any = load(artifact("int8"))
    layers = [layer for layer in small.manifest.layers if layer.activations != "none"]
    assert count_integer_layers(small).count == len(layers)
    arithmetic = {layer.module: layer.activations for layer in small.manifest.layers}
    for graph in ("vector_estimator", "vocoder"):
        blocks = {n: a for n, a in arithmetic.items() if n.startswith(graph) and ".convnext" in n}
        blocks |= {n: a for n, a in arithmetic.items() if n.startswith(f"{graph}:convnext")}
        pointwise = {a for name, a in blocks.items() if "pwconv" in name}
        depthwise = {a for name, a in blocks.items() if "dwconv" in name}
        assert (pointwise, depthwise) == ({"static"}, {"none"})
        optimized = optimize(small.graph(graph), fuse=True).graph
        operators = {node.op_type for node in optimized.node}
        assert "Gelu" in operators
        assert "Erf" not in operators


def test_sherpa_onnx_speaks_an_artifact_as_long(
    artifact: Callable[[str], Path], tmp_path: Path
) -> None:
    """With its own files of characters and voices; its noise cannot be chosen."""
    client = pytest.importorskip("sherpa_onnx")
    path = artifact("int8") / "onnx" / "duration_predictor.onnx"
    voice: Any = load(path)
    indexer = json.loads(path.with_name("unicode_indexer.json").read_text(encoding="utf-8"))
    np.array(indexer, np.int32).tofile(tmp_path / "indexer.bin")
    files = sorted((path.parents[1] / "voice_styles").glob("*.json"))
    tables = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    styles = [
        np.concatenate([np.array(t[key]["data"], np.float32) for t in tables])
        for key in ("style_ttl", "style_dp")
    ]
    with (tmp_path / "voice.bin").open("wb") as file:
        for style in styles:
            file.write(np.array(style.shape, np.int64).tobytes())
        for style in styles:
            file.write(style.tobytes())
    supertonic = client.OfflineTtsSupertonicModelConfig(
        duration_predictor=str(path),
        text_encoder=str(path.with_name("text_encoder.onnx")),
        vector_estimator=str(path.with_name("vector_estimator.onnx")),
        vocoder=str(path.with_name("vocoder.onnx")),
        tts_json=str(path.with_name("tts.json")),
        unicode_indexer=str(tmp_path / "indexer.bin"),
        voice_style=str(tmp_path / "voice.bin"),
    )
    model = client.OfflineTtsModelConfig(supertonic=supertonic, num_threads=1)
    speech = client.OfflineTts(client.OfflineTtsConfig(model=model))
    made = speech.generate("Go on as before.", sid=1, speed=1.05)
    spoken = voice.speaking_as(Speaking(speaker="M1")).synthesize("Go on as before.", seed=0)
    assert made.sample_rate == spoken.sample_rate
    assert abs(len(made.samples) - len(spoken.samples)) <= 3_072
    assert 0.5 < np.std(made.samples) / np.std(spoken.samples) < 2
