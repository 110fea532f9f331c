"""Tiny seeded networks of the official packages, and what they are compressed and run with."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from tts_compress.errors import ModelError


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Compute as `one_thread` says."""


@pytest.fixture(scope="session")
def f5_module() -> Callable[[str], Any]:
    """Return a function that imports a module of f5_tts or vocos, if they are installed."""
    for name in ("torch", "f5_tts", "vocos"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    from tts_compress.models.f5.network import official

    return official


@pytest.fixture(scope="session")
def make_vocos(f5_module: Callable[[str], Any]) -> Callable[..., Any]:
    """Return a function that builds a vocoder of 50,000 weights; keywords change its transform."""
    import torch

    models, heads = f5_module("vocos.models"), f5_module("vocos.heads")
    features, vocos = f5_module("vocos.feature_extractors"), f5_module("vocos")

    def make(n_fft: int = 1024, hop: int = 256, padding: str = "center") -> Any:
        torch.manual_seed(0)
        network = vocos.Vocos(
            features.MelSpectrogramFeatures(),
            models.VocosBackbone(100, 32, 64, 2),
            heads.ISTFTHead(32, n_fft, hop, padding=padding),
        ).eval()
        with torch.no_grad():
            network.head.out.weight.mul_(10)  # magnitudes that differ
            network.head.out.bias[: n_fft // 2 + 1].fill_(1.0)  # loud enough to be audible
        return network

    return make


@pytest.fixture(scope="session")
def make_dit(f5_module: Callable[[str], Any]) -> Callable[..., Any]:
    """Return a function that builds a transformer of 200,000 weights, changed by keywords."""
    import torch

    module = f5_module("f5_tts.model.backbones.dit")

    def make(**changes: Any) -> Any:
        torch.manual_seed(0)
        sizes = {"dim": 64, "depth": 2, "heads": 2, "dim_head": 32, "ff_mult": 2}
        text = {"text_num_embeds": 60, "text_dim": 32, "conv_layers": 2}
        network = module.DiT(**sizes | text | {"mel_dim": 100} | changes).eval()
        with torch.no_grad():
            for parameter in network.parameters():
                if not parameter.any():  # training begins there; a trained network has none
                    parameter.normal_(0, 0.1)
        return network

    return make


@pytest.fixture(scope="session")
def codecs() -> tuple[Any, Any]:
    """Return the modules parler_tts and transformers; tests skip where they are not installed."""
    for name in ("torch", "transformers", "parler_tts"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    from tts_compress.models.parler.model import load_packages

    try:
        return load_packages()
    except (ImportError, ModelError) as error:  # another system's environment
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def make_dac(codecs: tuple[Any, Any]) -> Callable[[str], Any]:
    """Return a function that builds a codec: `hub`, `normed` (with weight norm) or `wrapper`."""
    import torch

    parler, transformers = codecs
    sizes = {"n_codebooks": 9, "codebook_size": 64, "codebook_dim": 8}

    def hub() -> Any:
        ratios = {"downsampling_ratios": [2, 4], "upsampling_ratios": [4, 2]}
        config = transformers.DacConfig(
            encoder_hidden_size=8, decoder_hidden_size=96, **ratios, **sizes
        )
        return transformers.DacModel(config)

    def wrapper() -> Any:
        from dac.model import DAC  # type: ignore[import-not-found, unused-ignore]

        inner = DAC(
            encoder_dim=8,
            encoder_rates=[2, 4],
            decoder_dim=32,
            decoder_rates=[4, 2],
            latent_dim=32,
            **sizes,
        )
        wrapped = parler.DACModel.__new__(parler.DACModel)  # its constructor builds a full size
        transformers.PreTrainedModel.__init__(
            wrapped, parler.DACConfig(num_codebooks=9, codebook_size=64, latent_dim=32)
        )
        wrapped.model = inner
        return wrapped

    def make(kind: str) -> Any:
        torch.manual_seed(0)
        codec = (wrapper if kind == "wrapper" else hub)().eval()
        with torch.no_grad():
            for name, parameter in codec.named_parameters():
                if "alpha" in name:
                    parameter.uniform_(0.5, 2)  # of a trained codec they differ
                elif parameter.ndim == 3 and not name.endswith("weight_g"):
                    parameter.normal_(0, 0.4 * (parameter.shape[1] * parameter.shape[2]) ** -0.5)
        if kind == "normed":
            codec.apply_weight_norm()
        return codec

    return make
