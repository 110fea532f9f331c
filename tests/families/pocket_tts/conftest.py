"""A tiny seeded Pocket-TTS model in upstream's own files, of the package's own classes."""

from collections.abc import Callable
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.families.tiny import write_voice
from tts_compress.models.pocket.model import PocketModel, official
from tts_compress.models.pretrained import quiet

_WIDTH = 64
_END = -7.5
"""Mean score of the end; speech ends where a score is above -4."""

_CODEC = {
    "channels": 1,
    "dtype": "float32",
    "frame_rate": 10.0,
    "sample_rate": 4000,
    "inner_dim": 8,
    "outer_dim": 32,
    "quantizer": {"dimension": 8, "output_dimension": 32},
    "seanet": {
        "dimension": 32,
        "channels": 1,
        "n_filters": 16,
        "n_residual_layers": 1,
        "ratios": [5, 4, 2],
        "kernel_size": 7,
        "residual_kernel_size": 3,
        "last_kernel_size": 3,
        "dilation_base": 2,
        "pad_mode": "constant",
        "compress": 2,
    },
    "transformer": {
        "d_model": 32,
        "num_heads": 2,
        "num_layers": 2,
        "layer_scale": 0.3,
        "context": 20,
        "dim_feedforward": 64,
        "input_dimension": 32,
        "output_dimensions": [32],
    },
}


@pytest.fixture(scope="session")
def make_pocket_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes a tiny model's files; keywords change its language model."""
    for name in ("torch", "pocket_tts"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")

    def make(name: str, flow: str = "lsd", **changes: Any) -> Path:
        import torch
        from safetensors.torch import save_file

        torch.set_num_threads(1)  # networks this small only wait for a second one
        folder = tmp_path_factory.mktemp("pocket") / name
        folder.mkdir()
        rows = _write_tokenizer(folder / "tokenizer.json")
        table = {"dim": _WIDTH, "n_bins": rows, "tokenizer": "tokenizers"}
        flow_lm = {
            "dtype": "float32",
            "insert_bos_before_voice": True,
            "flow": {"dim": _WIDTH, "depth": 2, "type": flow},
            "transformer": {
                "d_model": _WIDTH,
                "hidden_scale": 2,
                "max_period": 10_000,
                "num_heads": 4,
                "num_layers": 2,
            },
            "lookup_table": table | {"tokenizer_path": "tokenizer.json"},
        } | changes
        settings: dict[str, Any] = {"flow_lm": flow_lm, "mimi": _CODEC}
        yaml = pytest.importorskip("yaml")
        (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        torch.manual_seed(0)
        with chdir(folder), quiet():
            root = official("models.tts_model").TTSModel.load_model(config="config.yaml")
        _make_expressive(root)
        save_file(root.state_dict(), folder / "model.safetensors")
        settings["weights_path"] = "model.safetensors"
        (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        write_voice(folder / "reference.wav", seconds=1.0)
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_pocket_dir(make_pocket_dir: Callable[..., Path]) -> Path:
    """Return the folder of a model of 250,000 weights; do not write into it."""
    return make_pocket_dir("tiny")


@pytest.fixture(scope="session")
def tiny_pocket(tiny_pocket_dir: Path) -> PocketModel:
    """Return that model, loaded; it is never modified."""
    return PocketModel.open(str(tiny_pocket_dir), f"pocket-tts:{tiny_pocket_dir}")


def _write_tokenizer(path: Path) -> int:
    """Write a tokenizer with one token for each character; return the number of tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    ids = {token: number for number, token in enumerate(["<unk>", *map(chr, range(32, 127))])}
    characters = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, "<unk>"))
    characters.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    characters.decoder = tokenizers.decoders.Fuse()
    characters.save(str(path))
    return len(ids)


def _make_expressive(root: Any) -> None:
    """Enlarge seeded weights until every layer is heard, and speech ends by itself."""
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        root.flow_lm.speaker_proj_weight.normal_(0, 0.3)
        root.flow_lm.out_eos.weight.normal_(0, 0.3)
        root.flow_lm.out_eos.bias.fill_(_END)
        for name, parameter in root.named_parameters():
            if name.startswith("flow_lm.transformer.") and parameter.dim() == 2:
                parameter.normal_(0, 0.25)
            if name.startswith("mimi.decoder.") and parameter.dim() == 3:
                parameter.mul_(2)
        state = official("modules.stateful_module").init_states(root.mimi, 1, 400)
        samples = root.mimi.decode_from_latent(torch.randn(1, 20, 8), state)
        last = root.mimi.decoder.model[-1].conv
        last.weight.mul_(0.2 / samples.square().mean().sqrt())
        last.bias.zero_()
