"""A tiny NaturalSpeech2 model in Amphion's own files, made from the classes of the clone."""

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.families.tiny import write_voice
from tts_compress.errors import ModelError
from tts_compress.models.checkout import find_checkout
from tts_compress.models.naturalspeech2 import AMPHION
from tts_compress.models.naturalspeech2.model import NaturalSpeech2Model
from tts_compress.models.naturalspeech2.network import CODEC, CODEC_VARIABLE, Amphion

_WIDTH = 64
_ENCODER = {
    "encoder_layer": 2,
    "encoder_hidden": _WIDTH,
    "encoder_head": 2,
    "conv_filter_size": 2 * _WIDTH,
}
_PREDICTOR = {"input_size": _WIDTH, "filter_size": _WIDTH, "conv_layers": 4, "attn_head": 2}
_CHANGES: dict[str, Any] = {
    "prior_encoder": {
        "encoder": _ENCODER,
        "duration_predictor": _PREDICTOR,
        "pitch_predictor": _PREDICTOR,
    },
    "diffusion": {"wavenet": {"hidden_size": _WIDTH, "num_layers": 6, "attn_head": 2}},
    "prompt_encoder": _ENCODER,
    "query_emb": {"query_token_num": 8, "hidden_size": _WIDTH, "head_num": 2},
}
_CONFIG = """{
    // as a trainer's, on top of the clone's own
    "base_config": "egs/tts/NaturalSpeech2/exp_config.json",
    "preprocess": {"lexicon_path": LEXICON},
    "model": MODEL, /* all other values are the system's */
}
"""
_LEXICON = "HELLO  HH AH0 L OW1\nTHERE  DH EH1 R\nGOOD  G UH1 D\nDAY  D EY1\n"

# In the place of g2p_en, whose data is a download: some phones for any word.
_G2P = '''"""Stands in for g2p_en, spelling words."""


class G2p:
    def __call__(self, text):
        kept = [c for c in text.lower() if c.isalpha() or c in " ,.?!"]
        return [{"a": "AE1", "e": "EH1", "i": "IH1", "o": "OW1", "u": "AH0"}.get(c, "T")
                if c.isalpha() else c for c in kept]
'''


@pytest.fixture(scope="session")
def amphion(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the clone; skip what needs it where there is none, or a package is missing."""
    try:
        clone = find_checkout(AMPHION).root
    except ModelError as error:
        pytest.skip(str(error))
    for name in ("torch", "encodec", "json5", "inflect", "unidecode", "ruamel.yaml", "safetensors"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    folder = tmp_path_factory.mktemp("g2p")
    (folder / "g2p_en.py").write_text(_G2P, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        inherited = os.environ.get("PYTHONPATH")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), inherited])))
        patch.delenv(CODEC_VARIABLE, raising=False)
        importlib.invalidate_caches()
        yield clone
    sys.modules.pop("g2p_en", None)


@pytest.fixture(scope="session")
def make_ns2_dir(amphion: Path) -> Callable[..., Path]:
    """Return a function that writes a tiny model's files; keywords change section `diffusion`."""
    del amphion

    def make(folder: Path, **diffusion: Any) -> Path:
        import torch

        folder.mkdir(parents=True)
        (folder / "words.txt").write_text(_LEXICON, encoding="utf-8")
        model = _CHANGES | {"diffusion": _CHANGES["diffusion"] | diffusion}
        text = _CONFIG.replace("LEXICON", json.dumps(str(folder / "words.txt")))
        text = text.replace("MODEL", json.dumps(model))
        (folder / "args.json").write_text(text, encoding="utf-8")
        network, codec = _networks(folder)
        torch.save(network.state_dict(), folder / "pytorch_model.bin")
        torch.save(codec.state_dict(), folder / CODEC)
        write_voice(folder / "reference.wav", seconds=1)
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_ns2_dir(
    tmp_path_factory: pytest.TempPathFactory, make_ns2_dir: Callable[..., Path]
) -> Path:
    """Return the files of a tiny model with a recording; do not write into the folder."""
    return make_ns2_dir(tmp_path_factory.mktemp("ns2") / "tiny")


@pytest.fixture(scope="session")
def tiny_ns2(tiny_ns2_dir: Path) -> NaturalSpeech2Model:
    """Return the tiny model, loaded, with four steps of its solver."""
    location = f"{tiny_ns2_dir}?inference_step=4"
    return NaturalSpeech2Model.open(location, f"naturalspeech2:{location}")


def _networks(folder: Path) -> tuple[Any, Any]:
    """Return seeded networks of upstream's classes, with values where training begins with none."""
    import torch

    amphion = Amphion()
    load_config = importlib.import_module("utils.util").load_config
    encodec = amphion.encodec
    torch.manual_seed(0)
    network = amphion.network

    class Untrained:
        @staticmethod
        def encodec_model_24khz() -> Any:
            return encodec.encodec_model_24khz(pretrained=False)

    with amphion.running(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "EncodecModel", Untrained)
        patch.delenv("WORK_DIR", raising=False)
        config = load_config(str(folder / "args.json"))
        model = network.NaturalSpeech2(config.model)
        codec = Untrained.encodec_model_24khz()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.1)
        for name, parameter in codec.named_parameters():
            if "bias" in name:
                parameter.zero_()  # or the sound were the same whatever is decoded
            elif name.endswith("weight_g"):
                parameter.mul_(1.5)
        model.diffusion.diff_estimator.out_proj.weight.mul_(3)
        for layer in codec.quantizer.vq.layers:
            layer._codebook.embed.normal_(std=0.3)
            layer._codebook.embed_avg.copy_(layer._codebook.embed)
        durations = model.prior_encoder.duration_predictor.linear
        durations.weight.mul_(0.3)
        durations.bias.fill_(1.8)  # five frames a phone, few on the edge to another number
        model.prior_encoder.pitch_predictor.linear.bias.fill_(5.0)  # 150 Hz
        table = model.prior_encoder.pitch_embedding.weight  # of neighbours alike, as training does
        rates = torch.rand(table.shape[1]) / 50
        table.copy_(torch.sin(torch.arange(len(table)).unsqueeze(1) * rates))
    model.quantizer.load_state_dict(codec.quantizer.state_dict())
    return model, codec
