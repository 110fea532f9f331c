"""Networks of the systems that run from the user's clone, at the sizes their authors publish."""

import json
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from benchmarks.networks.network import Network, Step, network
from tts_compress.torch.devices import device_of

_CACHED = 200
"""Positions before the step that is timed: a prompt, a text, and some seconds of speech."""

_T2S = {"hidden_dim": 512, "embedding_dim": 512, "head": 16, "linear_units": 2048, "n_layer": 24}
_T2S |= {"vocab_size": 1025, "phoneme_vocab_size": 732, "dropout": 0, "EOS": 1024}

_DECODER = (
    *("resblock", "resblock_kernel_sizes", "resblock_dilation_sizes", "upsample_rates"),
    *("upsample_initial_channel", "upsample_kernel_sizes", "gin_channels"),
)


@network(
    "t2s-decoder",
    "gpt-sovits",
    f"GPT-SoVITS v2: one token of the language model, {_CACHED} positions in the cache",
)
def _t2s_decoder() -> Network:
    """Return GPT-SoVITS' language model; FP32 is its scripted transformer."""
    from tts_compress.models.gpt_sovits.loading import Official
    from tts_compress.models.gpt_sovits.modules import open_decoder

    official = Official()
    prompt, step = torch.randn(1, _CACHED, 512), torch.randn(1, 1, 512)
    # Text sees text, speech what was before it; here everything counts as speech.
    hidden = torch.ones(_CACHED, _CACHED, dtype=torch.bool).triu(1).expand(1, 16, -1, -1)

    def make() -> nn.Module:
        with official.running():
            decoder = official.t2s.Text2SemanticDecoder(config={"model": _T2S})
        # It holds the very tensors that the opened decoder has as parameters.
        scripted = decoder.t2s_transformer
        root = nn.ModuleDict({"t2s": open_decoder(decoder)})
        vars(root)["scripted"] = scripted
        return root

    def as_upstream(root: nn.Module) -> Step:
        transformer: Any = vars(root)["scripted"]
        head: Any = root.get_submodule("t2s.ar_predict_layer")
        _, keys, values = transformer.process_prompt(prompt, hidden)
        # Lists of their own: upstream puts the longer caches into those it is given.
        return lambda: head(transformer.decode_next_token(step, [*keys], [*values])[0])

    def call(root: nn.Module) -> Step:
        transformer: Any = root.get_submodule("t2s.t2s_transformer")
        head: Any = root.get_submodule("t2s.ar_predict_layer")
        device = device_of(root)
        before, token = prompt.to(device), step.to(device)
        _, keys, values = transformer.process_prompt(before, hidden.to(device))

        def decode() -> torch.Tensor:
            keys.length = values.length = _CACHED
            logits: torch.Tensor = head(transformer.decode_next_token(token, keys, values)[0])
            return logits

        return decode

    called = ("t2s.t2s_transformer",)
    return Network(make=make, call=call, official=as_upstream, called=called)


@network(
    "sovits-decoder",
    "gpt-sovits",
    "GPT-SoVITS v2: its synthesizer's decoder, 200 frames, 4 s of audio",
)
def _sovits_decoder() -> Network:
    """Return the decoder of the synthesizer; FP32 is upstream's, with weight norm."""
    from tts_compress.models.gpt_sovits.loading import Official
    from tts_compress.models.gpt_sovits.modules import open_residuals

    official = Official()
    settings = official.checkout.root / "GPT_SoVITS/configs/s2.json"
    stated = json.loads(settings.read_text("utf-8"))["model"]
    arch = {name: stated[name] for name in _DECODER}
    latent, style = torch.randn(1, 192, 200), torch.randn(1, 512, 1)

    def build() -> nn.Module:
        with official.running():
            decoder = official.inference.Generator(stated["inter_channels"], **arch)
        return nn.ModuleDict({"vits": nn.ModuleDict({"dec": decoder})})

    def make() -> nn.Module:
        root = build()
        open_residuals(official.checkout, root)
        return root

    def as_upstream(root: nn.Module) -> Step:
        own = build().eval()
        own.load_state_dict(root.state_dict())
        return call(own)

    def call(root: nn.Module) -> Step:
        decoder: Any = root.get_submodule("vits.dec")
        device = device_of(root)
        frames, voice = latent.to(device), style.to(device)
        return lambda: decoder(frames, g=voice)

    return Network(make=make, call=call, official=as_upstream, called=("vits.dec",))


@network(
    "ns2-estimator",
    "naturalspeech2",
    "NaturalSpeech2: one step of the diffusion estimator, 375 frames, 5 s of audio",
)
def _ns2_estimator() -> Network:
    from tts_compress.models.naturalspeech2.network import Amphion

    amphion = Amphion()
    stated = json.loads((amphion.clone / "config/ns2.json").read_text("utf-8"))
    arch = SimpleNamespace(**stated["model"]["diffusion"]["wavenet"])
    inputs = {
        "x": torch.randn(1, 128, 375),
        "x_mask": torch.ones(1, 375),
        "cond": torch.randn(1, 375, 512),
        "diffusion_step": torch.tensor([0.5]),
        "spk_query_emb": torch.randn(1, 32, 512),
    }

    def make() -> nn.Module:
        with amphion.running():
            estimator = amphion.network.WaveNet(arch)
        return nn.ModuleDict({"diffusion": nn.ModuleDict({"diff_estimator": estimator})})

    def call(root: nn.Module) -> Step:
        estimator: Any = root.get_submodule("diffusion.diff_estimator")
        return lambda: estimator(**inputs)

    return Network(make=make, call=call)
