"""Pocket-TTS in five ONNX graphs, as published, through the contract that is shipped."""

import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.pocket_graphs import write_graphs
from tests.families.tiny import write_voice
from tts_compress.audio import read_wav, resample
from tts_compress.compression import compress
from tts_compress.models import load
from tts_compress.models.base import LatentModel
from tts_compress.models.pocket.model import PocketModel, official
from tts_compress.models.pretrained import quiet

torch = pytest.importorskip("torch")
pytest.importorskip("sentencepiece")

TEXT = "the quick fox."


@pytest.fixture(scope="module")
def root(tiny_pocket: PocketModel) -> Any:
    """Return an official object of a copy of the weights, whose speech ends early."""
    copied: Any = deepcopy(tiny_pocket.root())
    copied.flow_lm.out_eos.bias.data += 2
    return copied


@pytest.fixture(scope="module")
def graph(root: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the first of the five graphs, not to be changed."""
    folder = tmp_path_factory.mktemp("graphs")
    write_voice(folder / "reference.wav", seconds=1.0)
    return write_graphs(root, folder)


def _spoken(root: Any, graph: Path, tokens: list[int]) -> Any:
    """Return what the official steps say without noise, and the latents that they read."""
    states, lm = official("modules.stateful_module"), root.flow_lm
    root.temp, step = 0.0, root._run_flow_lm_and_increment_step
    state, heard = states.init_states(lm, 1, 1000), states.init_states(root.mimi, 1, 5000)
    wav = read_wav(graph.with_name("reference.wav"))
    audio = torch.from_numpy(resample(wav.samples, wav.sample_rate, root.sample_rate))
    begin = torch.cat([lm.bos_before_voice, root._encode_audio(audio[None, None])], 1)
    latent, end, said, read = torch.full((1, 1, lm.ldim), torch.nan), 500, list[Any](), list[Any]()
    with torch.no_grad(), quiet():
        step(model_state=state, audio_conditioning=begin)
        step(model_state=state, text_tokens=torch.tensor([tokens]))
        for number in range(500):
            read.append(latent[0])
            latent, ends = step(model_state=state, backbone_input_latents=latent)
            end = min(end, number + 3) if ends else end
            if number >= end:
                break
            said.append(root.mimi.decode_from_latent(latent * lm.emb_std + lm.emb_mean, heard))
            states.increment_steps(root.mimi, heard, increment=10)
    return torch.cat(said, -1).reshape(-1).numpy(), torch.cat(read).numpy()


@pytest.mark.slow
def test_five_graphs_speak_as_the_official_steps_do(root: Any, graph: Path) -> None:
    from sentencepiece import SentencePieceProcessor

    pieces = SentencePieceProcessor(model_file=str(graph.with_name("tokenizer.model")))
    voice: Any = load(graph)
    assert voice.describe()["contract"] == "pocket-tts"
    samples, read = _spoken(root, graph, pieces.encode(TEXT))
    assert 3 < len(read) < 500
    assert np.allclose(voice.synthesize(TEXT, seed=None).samples, samples, atol=1e-4)
    assert issubclass(type(voice), LatentModel)
    latents = voice.generate_latents(TEXT, seed=None)
    assert np.allclose(latents[1:], read[1:], atol=1e-4)


@pytest.mark.slow
def test_a_flow_is_followed_in_as_many_steps_as_its_graph_repeats(
    root: Any, graph: Path, tmp_path: Path
) -> None:
    shutil.copytree(graph.parent, tmp_path / "two")
    contract = tmp_path / "two" / "contract.toml"
    text = contract.read_text("utf-8").replace("flow.latent =", "repeat = 2\nflow.latent =")
    text = text.replace("scale = 0.83666", 'scale = 0.5, next = "latent"')
    text = text.replace('input.s = { role = "constant", value = 0 }', 'input.s.role = "time"')
    contract.write_text(text, encoding="utf-8")
    voice: Any = load(tmp_path / "two" / graph.name)
    calls = voice.calibration_calls([TEXT], seed=2, part="flow_lm_flow", every=True)
    first, second = (
        {name: torch.from_numpy(value) for name, value in next(calls).items()} for _ in range(2)
    )
    one: Any = load(graph)
    whole = next(one.calibration_calls([TEXT], seed=2, part="flow_lm_flow"))["x"]
    assert np.allclose(first["x"] / 0.5, whole / 0.83666, atol=1e-5)
    assert (float(first["s"]), float(second["s"])) == (0, 0.5)  # of its own loop, not of speech's
    with torch.no_grad():
        flow = root.flow_lm.flow_net(first["c"], first["s"], first["t"], first["x"])
    assert torch.allclose(second["x"], first["x"] + flow / 2, atol=1e-5)


@pytest.mark.slow
def test_integers_speak_from_the_same_noise(graph: Path, tmp_path: Path) -> None:
    voice: Any = load(graph)
    saved: Any = load(compress(voice, "int8-dynamic").save(tmp_path / "small"))
    assert saved.manifest.size_bytes < 0.5 * sum(
        path.stat().st_size for path in graph.parent.glob("*.onnx")
    )
    assert (tmp_path / "small" / "tokenizer.model").is_file()
    latents = voice.generate_latents(TEXT, seed=4)
    reading, answers = (v.read_latents(TEXT, latents) for v in (voice, saved))
    assert 0 < np.abs(reading.stop - answers.stop).max() < 1
    ratio = np.abs(reading.latents - answers.latents).max() / np.abs(reading.latents).max()
    assert 0 < ratio < 0.1
    assert saved.synthesize(TEXT, seed=4).samples.size
