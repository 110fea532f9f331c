"""Training checkpoints: the official layout is understood, anything else is not executed."""

import io
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tts_compress.errors import ModelError
from tts_compress.models import load
from tts_compress.models.base import GraphModel
from tts_compress.models.piper import _read

torch = pytest.importorskip("torch")


@pytest.fixture
def write(tmp_path: Path, voice_config: dict[str, Any]) -> Callable[[Any], Path]:
    """Write a checkpoint with a configuration beside it."""

    def write_one(content: Any) -> Path:
        path = tmp_path / "voice.ckpt"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            torch.save(content, path)
        (tmp_path / "config.json").write_text(json.dumps(voice_config), encoding="utf-8")
        return path

    return write_one


@pytest.fixture(scope="module", autouse=True)
def _small_networks(few_flows: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Build networks of few flows, here and where a checkpoint is read."""
    with few_flows():
        yield


@pytest.fixture(scope="module")
def original(make_checkpoint: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Return a checkpoint."""
    return make_checkpoint()


@pytest.fixture
def checkpoint(original: dict[str, Any]) -> dict[str, Any]:
    """Return that checkpoint with tables to change; its tensors are shared."""
    tables = {name: {**original[name]} for name in ("hyper_parameters", "state_dict")}
    return {**original, **tables}


def test_export_has_pipers_inputs_and_folded_weight_norm(tiny: GraphModel) -> None:
    graph = tiny.graph().graph
    assert [value.name for value in graph.input] == ["input", "input_lengths", "scales"]
    assert [value.name for value in graph.output] == ["output"]
    assert not [t.name for t in graph.initializer if "weight_g" in t.name or "enc_q" in t.name]


@pytest.mark.slow
def test_export_speaks_as_the_network_does(
    tiny: GraphModel, tiny_checkpoint: Path, original: dict[str, Any]
) -> None:
    """Against the training class itself, without noise."""
    from tts_compress.models.piper import _DEFAULTS, _build

    weights = {
        name.removeprefix("model_g."): value
        for name, value in original["state_dict"].items()
        if name.startswith("model_g.")
    }
    network: Any = _build(tiny_checkpoint, _DEFAULTS | original["hyper_parameters"], weights)
    feeds = next(iter(tiny.calibration_calls(["Hello there."], seed=0)))
    with torch.no_grad():
        wanted = network.infer(
            torch.from_numpy(feeds["input"]),
            torch.from_numpy(feeds["input_lengths"]),
            noise_scale=0.0,
            noise_scale_w=0.0,
        )[0]
    found = tiny.synthesize("Hello there.", seed=None).samples
    np.testing.assert_allclose(found, wanted.reshape(-1).numpy(), atol=1e-4)


@pytest.mark.slow
def test_voice_of_several_speakers_takes_one(
    write: Callable[[Any], Path], make_checkpoint: Callable[..., dict[str, Any]]
) -> None:
    voice = load(write(make_checkpoint(num_speakers=3, gin_channels=8)))
    assert voice.synthesize("Hello.", seed=0).samples.std() > 0
    assert "emb_g" in voice.components()


class _Hostile:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch executed",)


@pytest.mark.parametrize("as_zip", [True, False])
def test_hostile_pickle_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Any], Path], as_zip: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write({"state_dict": _Hostile()} if as_zip else pickle.dumps(_Hostile()))
    with pytest.raises(ModelError, match="not a checkpoint that is safe to read"):
        load(path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
@pytest.mark.parametrize("name", ["PosixPath", "WindowsPath"])
def test_paths_of_either_system_are_read(
    write: Callable[[Any], Path], monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    """Python 3.13 names their module otherwise; those of Windows cannot be made elsewhere."""
    path: Any = type(name, (), {"__module__": module})
    path.__reduce__ = lambda _: (path, ("logs", "s1"))
    held, saved = sys.modules.get(module, ModuleType(module)), io.BytesIO()
    with monkeypatch.context() as context:
        context.setitem(sys.modules, module, held)
        context.setattr(held, name, path, raising=False)
        torch.save({"hyper_parameters": {"dataset_dir": path()}}, saved)
    parameters = _read(write(saved.getvalue()))["hyper_parameters"]
    assert parameters["dataset_dir"].as_posix() == "logs/s1"


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_truncated_file_is_refused(
    tiny_checkpoint: Path, write: Callable[[Any], Path], share: float
) -> None:
    content = tiny_checkpoint.read_bytes()
    with pytest.raises(ModelError, match=r"voice\.ckpt"):
        load(write(content[: int(len(content) * share)]))


@pytest.mark.parametrize(
    "content",
    [
        [],
        3,
        {},
        {"state_dict": {}},
        {"hyper_parameters": {}},
        {"state_dict": {}, "hyper_parameters": {"inter_channels": 16}},
        {"state_dict": [], "hyper_parameters": {}},
        {"state_dict": {}, "hyper_parameters": 3},
        {"state_dict": {3: 4}, "hyper_parameters": {}},
    ],
    ids=repr,
)
def test_content_that_is_no_checkpoint_is_refused(
    write: Callable[[Any], Path], content: Any
) -> None:
    with pytest.raises(ModelError, match=r"voice\.ckpt"):
        load(write(content))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("inter_channels", 32),
        ("inter_channels", -1),
        ("hidden_channels", "sixteen"),
        ("n_heads", 3),
        ("n_heads", 0),
        ("num_speakers", "two"),
        ("filter_length", None),
        ("hop_length", 0),
        ("upsample_rates", "[8, 8"),
        ("upsample_rates", "__import__('os').system('touch executed')"),
        ("upsample_kernel_sizes", ()),
        ("resblock_kernel_sizes", 3),
        # What would be built takes minutes and gigabytes.
        ("n_layers", 10_000_000),
        ("hidden_channels", 60_000),
        ("num_symbols", 1 << 40),
        ("upsample_rates", [2] * 10_000),
    ],
)
def test_hyper_parameters_that_do_not_fit_are_refused(
    write: Callable[[Any], Path], checkpoint: dict[str, Any], key: str, value: Any
) -> None:
    checkpoint["hyper_parameters"][key] = value
    with pytest.raises(ModelError, match=r"voice\.ckpt"):
        load(write(checkpoint))


@pytest.mark.slow
def test_missing_and_unknown_weights_are_refused(
    write: Callable[[Any], Path], checkpoint: dict[str, Any]
) -> None:
    del checkpoint["state_dict"]["model_g.dec.conv_post.weight"]
    with pytest.raises(ModelError, match=r"lacks 1 weights.*dec\.conv_post"):
        load(write(checkpoint))
    checkpoint["state_dict"]["model_g.dec.conv_past.weight"] = torch.zeros(1)
    with pytest.raises(ModelError, match="has 1 that it does not know"):
        load(write(checkpoint))


def test_weights_that_are_not_finite_are_refused(
    write: Callable[[Any], Path], checkpoint: dict[str, Any]
) -> None:
    name = "model_g.dec.conv_post.weight"
    checkpoint["state_dict"][name] = torch.full_like(checkpoint["state_dict"][name], torch.nan)
    with pytest.raises(ModelError, match=r"dec\.conv_post\.weight.*not finite"):
        load(write(checkpoint))


def test_missing_configuration_lists_the_names_looked_for(write: Callable[[Any], Path]) -> None:
    path = write({})
    path.with_name("config.json").unlink()
    with pytest.raises(ModelError, match=r"voice\.ckpt\.json, voice\.onnx\.json, config\.json"):
        load(path)
