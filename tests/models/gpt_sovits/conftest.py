"""Tiny files in GPT-SoVITS' own formats, with the names and relations of real ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.models.gpt_sovits.source import GptSovitsSettings

if TYPE_CHECKING:
    from torch import Tensor

HEADERS = {"v1": b"PK", "v2": b"PK", "v2Pro": b"05", "v2ProPlus": b"06", "v3": b"02", "v4": b"PK"}
"""Marks as upstream writes them, or would: it has no mark of a whole v4."""

_BLOCK = "cfm.estimator.transformer_blocks.0.attn"


@pytest.fixture
def hparams(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], Any]:
    """Return a function that makes upstream's settings object: nested, pickled by its name."""

    class HParams:
        def __init__(self, **values: Any) -> None:
            for name, value in values.items():
                setattr(self, name, HParams(**value) if isinstance(value, dict) else value)

    HParams.__module__, HParams.__qualname__ = "utils", "HParams"
    module = ModuleType("utils")
    module.HParams = HParams  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "utils", module)
    return lambda values: HParams(**values)


@pytest.fixture
def save_official() -> Callable[..., Path]:
    """Return a function that saves as upstream does: torch's file, its first bytes exchanged."""
    torch = pytest.importorskip("torch")

    def save(path: Path, content: Any, header: bytes = b"PK") -> Path:
        torch.save(content, path)
        path.write_bytes(header + path.read_bytes()[2:])
        return path

    return save


@pytest.fixture
def sovits_tensors() -> Callable[..., dict[str, Tensor]]:
    """Return a function that makes a synthesizer's tensors, FP16 as fine-tuning leaves them."""
    torch = pytest.importorskip("torch")

    def make(version: str) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(0)
        symbols, bands = (322, 1025) if version == "v1" else (732, 704)
        channels = 768 if version == "v2ProPlus" else 512
        shapes: dict[str, tuple[int, ...]] = {
            "enc_p.text_embedding.weight": (symbols, 4),
            "ref_enc.spectral.0.fc.weight": (8, bands),
            "quantizer.vq.layers.0._codebook.embed": (16, 4),
        }
        if version in {"v3", "v4"}:
            names = ("to_q", "to_k", "to_v", "to_out.0")
            shapes |= {f"{_BLOCK}.{name}.weight": (6, 6) for name in names}
            shapes |= {"bridge.0.weight": (8, 4, 1), "linear_mel.weight": (100, 8, 1)}
        else:
            shapes |= {"dec.conv_pre.weight": (channels, 4, 7), "flow.flows.0.pre.weight": (4, 2)}
        if version in {"v2Pro", "v2ProPlus"}:
            shapes |= {"sv_emb.weight": (2, 20480), "prelu.weight": (2,)}
        return {n: torch.randn(s, generator=generator).half() for n, s in shapes.items()}

    return make


@pytest.fixture
def lora_tensors() -> Callable[..., dict[str, Tensor]]:
    """Return a function that makes the tensors that LoRA training saves: those not frozen."""
    torch = pytest.importorskip("torch")

    def make(rank: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1)
        wrapped = _BLOCK.replace("cfm.", "cfm.base_model.model.")
        shapes: dict[str, tuple[int, ...]] = {"bridge.0.weight": (8, 4, 1)}
        for name in ("to_q", "to_out.0"):
            shapes[f"{wrapped}.{name}.lora_A.default.weight"] = (rank, 6)
            shapes[f"{wrapped}.{name}.lora_B.default.weight"] = (6, rank)
        return {n: torch.randn(s, generator=generator).half() for n, s in shapes.items()}

    return make


@pytest.fixture
def sovits_config() -> dict[str, Any]:
    """Return a synthesizer's settings, shortened."""
    return {
        "train": {"segment_size": 20480, "betas": [0.8, 0.99]},
        "data": {
            "filter_length": 2048,
            "hop_length": 640,
            "sampling_rate": 32000,
            "mel_fmax": None,
            "n_speakers": 300,
        },
        "model": {"inter_channels": 4, "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5]]},
        "save_weight_dir": "SoVITS_weights",
    }


@pytest.fixture
def t2s_content() -> Callable[..., dict[str, Any]]:
    """Return a function that makes a T2S model's sections."""
    torch = pytest.importorskip("torch")

    def make(symbols: int = 732) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(2)
        shapes = {
            "model.bert_proj.weight": (4, 1024),
            "model.ar_text_embedding.word_embeddings.weight": (symbols, 4),
            "model.h.layers.0.self_attn.in_proj_weight": (12, 4),
        }
        return {
            "weight": {n: torch.randn(s, generator=generator).half() for n, s in shapes.items()},
            "config": {
                "data": {"max_sec": 54},
                "model": {"vocab_size": 1025, "phoneme_vocab_size": symbols},
            },
            "info": "GPT-e15",
        }

    return make


@pytest.fixture
def write_model(
    tmp_path: Path,
    save_official: Callable[..., Path],
    sovits_tensors: Callable[..., dict[str, Tensor]],
    sovits_config: dict[str, Any],
    t2s_content: Callable[..., dict[str, Any]],
) -> Callable[..., tuple[Path, Path]]:
    """Return a function that writes both files of a version and returns their paths."""

    def write(version: str = "v2") -> tuple[Path, Path]:
        t2s = tmp_path / "voice-e15.ckpt"
        save_official(t2s, t2s_content(512 if version == "v1" else 732))
        settings = sovits_config | {"model": sovits_config["model"] | {"version": version}}
        content = {"weight": sovits_tensors(version), "config": settings, "info": "8epoch"}
        return t2s, save_official(tmp_path / "voice_e8.pth", content, HEADERS[version])

    return write


@pytest.fixture
def settings_file(sovits_config: dict[str, Any]) -> Callable[[Path], None]:
    """Return a function that writes an artifact's settings."""
    made = GptSovitsSettings(version="v2Pro", t2s={}, sovits=sovits_config, bert={}, hubert={})

    def write(path: Path) -> None:
        path.write_text(made.to_json(), encoding="utf-8")

    return write
