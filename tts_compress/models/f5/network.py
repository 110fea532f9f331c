"""The official `F5TTS` object: built by upstream's loaders, or without memory and then filled."""

import copy
import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from tts_compress.artifact import LayerRecord
from tts_compress.errors import model_errors
from tts_compress.models.f5.files import SAMPLE_RATE, F5Source, MelSpec
from tts_compress.models.files import check_finite, read_tensors
from tts_compress.models.shims.stand_ins import offer_f5_trainer, offer_torchaudio
from tts_compress.models.torch_model import restore_weights

_METHOD = "euler"


@dataclass(frozen=True, slots=True, kw_only=True)
class F5Networks:
    """An F5-TTS model in memory."""

    api: Any
    """The official `f5_tts.api.F5TTS`."""

    @property
    def root(self) -> nn.Module:
        """A module with the object's transformer and vocoder as children, the live ones."""
        self.forget_text()
        parts = {"transformer": self.api.ema_model.transformer, "vocoder": self.api.vocoder}
        return nn.ModuleDict(parts).eval()

    def with_root(self, root: nn.Module) -> "F5Networks":
        """Return an official object with other modules; what else it holds is shared."""
        network = copy.copy(self.api.ema_model)
        # A shallow copy of a module shares the dictionary that its children are in.
        network.__dict__["_modules"] = dict(network._modules)  # noqa: SLF001
        network.transformer = root.get_submodule("transformer")
        api = copy.copy(self.api)
        api.ema_model = network
        api.vocoder = root.get_submodule("vocoder")
        return F5Networks(api=api)

    def forget_text(self) -> None:
        """Drop the text that the transformer keeps per thread, in a form that cannot be copied."""
        self.api.ema_model.transformer.__dict__.pop("_cache_local", None)


def official(name: str) -> Any:
    """Return a module of the official package, such as `f5_tts.api`, or of `vocos`."""
    offer_torchaudio()
    offer_f5_trainer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about programs for other audio formats
        return import_module(name)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the package's prints out of our own output, which programs read."""
    with redirect_stdout(io.StringIO()):
        yield


def load_networks(source: F5Source, layers: Sequence[LayerRecord]) -> F5Networks:
    """Read upstream's own files, or a saved model whose weights are never larger than stored."""
    weights = source.vocoder_weights
    if weights is None:
        with _reading(source.config):
            networks = _build(source)
        return networks.with_root(restore_weights(networks.root, layers, source.checkpoint))
    with _reading(source.checkpoint):
        network = official("f5_tts.infer.utils_infer").load_model(
            getattr(official("f5_tts.model"), source.backbone),
            source.arch,
            str(source.checkpoint),
            mel_spec_type="vocos",
            vocab_file=str(source.vocabulary),
            ode_method=_METHOD,
            use_ema=True,
            device="cpu",
        )
    with _reading(weights):
        vocoder = official("vocos").Vocos.from_hparams(str(source.vocoder_config))
        vocoder.load_state_dict(read_tensors(weights))
    for path, module in ((source.checkpoint, network), (weights, vocoder)):
        check_finite(module.named_parameters(), path)
    return _assemble(network.float(), vocoder.float())


def _build(source: F5Source) -> F5Networks:
    """Build the networks as upstream's loaders do, with parameters that take no memory.

    Tensors that upstream computes from the settings (rotations, windows, filters) are real.
    """
    from accelerate import init_empty_weights

    tokenizer = official("f5_tts.model.utils").get_tokenizer
    vocabulary, size = tokenizer(str(source.vocabulary), "custom")
    model, mel_spec = official("f5_tts.model"), MelSpec()
    with init_empty_weights(include_buffers=False):
        transformer = getattr(model, source.backbone)(
            **source.arch, text_num_embeds=size, mel_dim=mel_spec.n_mel_channels
        )
        vocoder = official("vocos").Vocos.from_hparams(str(source.vocoder_config))
    network = model.CFM(
        transformer=transformer,
        mel_spec_kwargs=mel_spec.model_dump(),
        odeint_kwargs={"method": _METHOD},
        vocab_char_map=vocabulary,
    )
    return _assemble(network, vocoder)


def _assemble(network: Any, vocoder: Any) -> F5Networks:
    """Return an `F5TTS` object made of loaded networks.

    Its own constructor loads upstream's releases only.
    """
    kind = official("f5_tts.api").F5TTS
    api = kind.__new__(kind)
    api.ema_model = network.eval()
    api.vocoder = vocoder.eval()
    api.mel_spec_type = "vocos"
    api.target_sample_rate = SAMPLE_RATE
    api.ode_method = _METHOD
    api.use_ema = True
    api.device = "cpu"
    return F5Networks(api=api)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Call code that was written for its authors' own files."""
    with model_errors(f"'{path}' cannot be loaded with the files beside it"), quiet():
        yield
