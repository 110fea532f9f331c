"""Pocket-TTS: a language model that writes audio latents step by step and decides when to stop.

A transformer reads the voice, the text and the latents so far; a head tells whether speech ends,
and a small network makes the next latent of noise in one step. A streaming codec turns latents into
samples. Rouard et al., 2025, arXiv 2509.06926.
"""

import copy
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tts_compress.artifact import MANIFEST_NAME, LayerRecord
from tts_compress.audio import Audio
from tts_compress.errors import ModelError, model_errors
from tts_compress.models.base import ModelFiles, Objective, Prompt, Reading, check_text
from tts_compress.models.files import (
    REFERENCE,
    check_duration,
    check_finite,
    find_prompt,
    read_tensors,
    read_yaml,
    write_recording,
)
from tts_compress.models.options import Options
from tts_compress.models.pocket import FAMILY
from tts_compress.models.pretrained import bounded_weights, find_folder, quiet
from tts_compress.models.torch_model import WEIGHTS, LoadedRoot, TorchFamilyModel, restore_weights
from tts_compress.models.torch_noise import paired_noise, with_noise_of_this_thread
from tts_compress.torch.layers.integer import IntegerLayer

CONFIG = "config.yaml"
STATE = "voice.safetensors"
"""The file beside a model with a voice's stored state, as `pocket-tts export-voice` writes it."""

_FETCHED = ("*.yaml", "*.safetensors", "tokenizer*", REFERENCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PocketOptions(Options):
    """Settings of inference; the defaults of a model stand in its configuration."""

    limits: ClassVar = {"temperature": (0.0, 2.0), "eos_threshold": (-100.0, 100.0)}

    temperature: float = 0.3
    """Variance of the noise from which a latent is made, 0 to 2."""

    eos_threshold: float = -4.0
    """Score of the end above which speech ends, -100 to 100."""


@dataclass(frozen=True, kw_only=True)
class PocketSource:
    """The configuration that a model is read by, and what lies beside it."""

    config: Path

    voice: str = ""
    """Name of one of the package's voices; empty for what lies beside the configuration."""

    @cached_property
    def settings(self) -> Any:
        """The official `Config`, checked; names of files are as they stand in it."""
        settings = read_yaml(self.config)
        with model_errors(f"'{self.config}' is no configuration of Pocket-TTS"):
            return official("utils.config").Config(**settings)

    @property
    def is_release(self) -> bool:
        """True if the configuration is one that the package brings."""
        return self.config.parent == releases()

    @property
    def options(self) -> PocketOptions:
        """Settings of inference, as the configuration states them."""
        return PocketOptions(
            temperature=self.settings.default_temperature,
            eos_threshold=self.settings.default_eos_threshold,
        )

    @property
    def prompt(self) -> Prompt:
        """The recording or the stored state beside the configuration, if there is one."""
        if self.is_release or self.voice:
            return Prompt()
        state = self.config.with_name(STATE)
        return Prompt(audio=state) if state.is_file() else find_prompt(self.config.parent)

    def tokenizer(self) -> Path:
        """Return the tokenizer's file, fetched where it is not here."""
        return self._fetch(self.settings.flow_lm.lookup_table.tokenizer_path)

    def weights(self) -> tuple[Path, ...]:
        """Return the files with the weights, fetched where they are not here."""
        stated, parts = self.settings, (self.settings.flow_lm, self.settings.mimi)
        names = [part.weights_path for part in parts if part.weights_path]
        if not stated.weights_path:
            paths = [self._fetch(name) for name in names]
        else:
            try:
                paths = [self._fetch(stated.weights_path), *map(self._fetch, names)]
            except ModelError:
                # As upstream does where nobody has agreed to the terms of cloning voices.
                if not stated.weights_path_without_voice_cloning:
                    raise
                paths = [self._fetch(stated.weights_path_without_voice_cloning)]
        if not paths:
            raise ModelError(f"'{self.config}' names no weights; add weights_path")
        return tuple(paths)

    def files(self) -> ModelFiles:
        """Return the model's files."""
        beside = (self.config.with_name(name) for name in (STATE, REFERENCE))
        recorded = () if self.is_release else (path for path in beside if path.is_file())
        return ModelFiles(
            weights=self.weights(), settings=(self.config, self.tokenizer(), *recorded)
        )

    def _fetch(self, name: str) -> Path:
        """Return the file of a name: a path from the configuration's folder, or one on a hub."""
        path = self.config.parent / name
        if "://" in name:
            with model_errors(f"cannot fetch '{name}'; give a folder with its files"):
                path = Path(official("utils.utils").download_if_necessary(name))
        if not path.is_file():
            raise ModelError(f"'{self.config}' names '{name}', which is not there; fetch it")
        return path


def find_source(location: str) -> PocketSource:
    """Return the files of a release, a folder, a configuration, or a name on the hub.

    A comma and the name of one of the package's voices may follow.
    """
    where, comma, voice = location.rpartition(",")
    if not comma or Path(location).exists():
        where, voice = location, ""
    path = Path(where)
    if path.suffix not in {".yaml", ".yml"}:
        names = sorted(release.stem for release in releases().glob("*.yaml"))
        if where in names and not path.is_dir():
            path = releases() / f"{where}.yaml"
        elif "/" not in where and not path.is_dir():
            raise ModelError(
                f"no Pocket-TTS model {where!r}; give a folder, or one of {', '.join(names)}"
            )
        else:
            path = find_folder(where, "Pocket-TTS", "owner/name", _FETCHED, CONFIG) / CONFIG
    if not path.is_file():
        raise ModelError(f"there is no '{path}'; give a folder with {CONFIG} and its weights")
    source = PocketSource(config=path, voice=voice)
    _ = source.settings  # refused here, where they are no settings
    voices = sorted(official("utils.utils")._ORIGINS_OF_PREDEFINED_VOICES)  # noqa: SLF001
    if voice and not (source.is_release and voice in voices):
        raise ModelError(
            f"{location!r} names the voice {voice!r}; accepted, of a release of the package, are "
            f"{', '.join(voices)}; elsewhere give a recording"
        )
    return source


def releases() -> Path:
    """Return the folder with the configurations that the package brings."""
    return Path(official("utils.config").CONFIGS_DIR)


def official(name: str) -> Any:
    """Return a module of the package, whose import would leave torch with one thread."""
    threads = torch.get_num_threads()
    try:
        return import_module(f"pocket_tts.{name}")
    finally:
        torch.set_num_threads(threads)


def load_networks(source: PocketSource, layers: Sequence[LayerRecord]) -> LoadedRoot:
    """Read an original, or an artifact whose weights are never larger than stored."""
    directory = source.config.parent
    if (directory / MANIFEST_NAME).is_file():
        root = restore_weights(build_skeleton(source), layers, directory / WEIGHTS)
        return LoadedRoot(root=root.eval())
    kind = official("models.tts_model").TTSModel
    with model_errors(f"'{source.config}' cannot be loaded"), quiet(), bounded_weights():
        if source.is_release:
            root = kind.load_model(language=source.config.stem)
        else:  # which names files from its own folder
            with chdir(directory):
                root = kind.load_model(config=source.config.name)
    check_finite(root.named_parameters(), source.config)
    return LoadedRoot(root=root.float().eval())


def build_skeleton(source: PocketSource) -> nn.Module:
    """Return the model that an artifact's settings describe, without memory."""
    settings = copy.deepcopy(source.settings)
    settings.flow_lm.lookup_table.tokenizer_path = str(source.tokenizer())
    problem = model_errors(f"'{source.config}' cannot be built")
    with problem, quiet(), bounded_weights(), torch.device("meta"):
        return build(settings)


def build(settings: Any) -> nn.Module:
    """Return the official `TTSModel` of an official `Config`, whose weights are drawn."""
    models = official("models.tts_model")
    options = (settings.default_temperature, 1, None, settings.default_eos_threshold)
    root: Any = models.TTSModel._from_pydantic_config(settings, *options, None)  # noqa: SLF001
    width = settings.mimi.inner_dim or settings.mimi.seanet.dimension
    shape = settings.flow_lm.transformer.d_model, width
    root.flow_lm.speaker_proj_weight = nn.Parameter(torch.zeros(shape))
    root.mimi = models.build_mimi(settings.mimi)
    models.stamp_state_names(root)
    built: nn.Module = root.eval()
    return built


def write_settings(source: PocketSource, options: PocketOptions, directory: Path) -> None:
    """Write the configuration and the tokenizer of a model whose files lie in one folder."""
    import yaml

    tokenizer, settings = source.tokenizer(), copy.deepcopy(source.settings)
    settings.flow_lm.lookup_table.tokenizer_path = name = f"tokenizer{tokenizer.suffix}"
    settings.flow_lm.weights_path = settings.mimi.weights_path = None
    settings.weights_path, settings.weights_path_without_voice_cloning = WEIGHTS, None
    settings.default_temperature = options.temperature
    settings.default_eos_threshold = options.eos_threshold
    written = yaml.safe_dump(settings.model_dump(mode="json"))
    (directory / CONFIG).write_text(written, encoding="utf-8")
    (directory / name).write_bytes(tokenizer.read_bytes())


Latents: TypeAlias = npt.NDArray[np.float32]


def check_recording(path: Path) -> None:
    """Refuse a file that is neither a recording to speak by nor a voice's stored state."""
    if path.suffix != ".safetensors":
        check_duration(path)
    elif not all(name.count("/") == 1 for name in read_tensors(path)):
        raise ModelError(f"'{path}' holds no voice's state, as `pocket-tts export-voice` writes it")


@dataclass(frozen=True, slots=True, kw_only=True)
class PocketSpeech:
    """The official object with the voice it speaks in."""

    root: Any
    """`TTSModel`, with any of its modules exchanged, set to the options."""

    state: Any
    """The state after the voice's recording, which speech goes on from."""

    def speak(self, text: str) -> Audio:
        """Return the audio of the official `generate_audio`, with the noise that torch draws."""
        check_text(text)
        with model_errors(f"the model cannot speak {text[:40]!r}"), quiet():
            samples = self._reproducible().generate_audio(self.state, text)
        return Audio(samples=samples.float().cpu().numpy(), sample_rate=int(self.root.sample_rate))

    def latents(self, text: str) -> Latents:
        """Return the latents that the language model reads while it speaks, shape `[S, D]`."""
        rows: list[Tensor] = []
        root = self._reproducible()
        step = root._run_flow_lm_and_increment_step  # noqa: SLF001  every step goes through it

        def note(**inputs: Any) -> Any:
            if (latent := inputs.get("backbone_input_latents")) is not None:
                rows.append(latent[0])
            return step(**inputs)

        root._run_flow_lm_and_increment_step = note  # noqa: SLF001
        self._exhaust(root, text)
        return torch.cat(rows).cpu().numpy()

    def read(self, text: str, latents: Latents) -> Reading:
        """Return the answers to these latents, by the official step with noise of zero."""
        answers: list[tuple[Tensor, Tensor]] = []
        scores: list[Tensor] = []
        root = copy.copy(self.root)

        def answer(state: Any, rows: Tensor) -> None:
            for row in torch.split(rows, 1):
                step = root._run_flow_lm_and_increment_step  # noqa: SLF001
                latent, _ = step(model_state=state, backbone_input_latents=row[None])
                answers.append((latent[0], scores[-1].reshape(-1)[-1:]))

        with root.flow_lm.out_eos.register_forward_hook(lambda *seen: scores.append(seen[2])):
            self._read(root, text, latents, answer)
        after, stops = (torch.cat(column).cpu().numpy() for column in zip(*answers, strict=True))
        return Reading(latents=after, stop=stops, threshold=root.eos_threshold)

    def read_at_once(self, text: str, latents: Latents) -> None:
        """Read each part's text and latents in one call of `flow_lm.backbone`."""
        root, waiting = copy.copy(self.root), list[Tensor]()
        lm = root.flow_lm

        def hold(*, model_state: Any, text_tokens: Tensor) -> None:
            del model_state
            waiting.append(lm.conditioner(text_tokens))

        def answer(state: Any, rows: Tensor) -> None:
            read = lm.input_linear(torch.where(rows.isnan(), lm.bos_emb, rows))
            embedded = waiting[-1]
            count = len(rows) + embedded.shape[1]
            # Only the part that is filled: training keeps it, and the package makes room for more.
            short = {name: dict(kept) for name, kept in state.items()}
            for kept in short.values():
                kept["cache"] = kept["cache"][:, :, : int(kept["offset"].reshape(-1)[0]) + count]
            lm.backbone(read[None], embedded, rows[None], short)

        root._run_flow_lm_and_increment_step = hold  # noqa: SLF001
        self._read(root, text, latents, answer)

    def _read(
        self, root: Any, text: str, latents: Latents, answer: Callable[[Any, Tensor], None]
    ) -> None:
        """Read a text by the official code, and have a function read the latents of each part.

        Args:
            root: A copy of the object, which is changed.
            text: What the latents say.
            latents: Shape `[S, D]`.
            answer: Is given the state behind the text, and the part's latents.
        """
        width, shape = root.flow_lm.ldim, latents.shape
        starts = np.flatnonzero(np.isnan(latents).any(-1)) if shape[1:] == (width,) else np.empty(0)
        if not len(starts) or starts[0]:
            raise ModelError(f"latents of shape {shape} are not ones of this model")
        parts, counts = iter(np.split(latents, starts[1:])), list[int]()

        @torch.no_grad()
        def read(state: Any, longest: int, _: int, queue: Any, __: Any) -> None:
            rows = next(parts, np.empty((0, 1), np.float32))
            if not 0 < len(rows) <= longest:
                raise ModelError(f"{len(rows)} latents are not ones of this text")
            answer(state, torch.from_numpy(rows).to(root.device))
            counts.append(len(rows))
            queue.put(None)

        with paired_noise(None):
            root._autoregressive_generation = with_noise_of_this_thread(read)  # noqa: SLF001
            self._exhaust(root, text)
        if sum(counts) != len(latents):
            raise ModelError(f"the latents are not ones of {text[:40]!r}")

    def _exhaust(self, root: Any, text: str) -> None:
        check_text(text)
        with model_errors(f"the model cannot read {text[:40]!r}"), quiet():
            for _ in root.generate_audio_stream(self.state, text):
                pass

    def _reproducible(self) -> Any:
        """Return a copy of the object that draws noise that is chosen, if it is, in its threads.

        It then decodes latent by latent, not as many at once as happen to wait.
        """
        root = copy.copy(self.root)
        generate = root._autoregressive_generation  # noqa: SLF001  the body of its thread
        if (noisy := with_noise_of_this_thread(generate)) is not generate:
            root._autoregressive_generation = noisy  # noqa: SLF001
            root.max_decoder_frames_per_call = 1
        return root


def check_state(root: Any, state: Any) -> None:
    """Refuse a voice's state that is not one of a model's transformer."""
    fresh = official("modules.stateful_module").init_states(root.flow_lm, 1, sequence_length=1)
    for name, tensors in fresh.items():
        stored = state.get(name, {})
        cache, offset = stored.get("cache"), stored.get("offset")
        shape = () if cache is None else tuple(cache.shape)
        wanted = tuple(tensors["cache"].shape)
        fits = len(shape) == 5 and shape[:2] + shape[3:] == wanted[:2] + wanted[3:]
        if not fits or offset is None or not 0 <= int(offset.reshape(-1)[0]) <= shape[2]:
            raise ModelError(
                f"its state of '{name}' has the shape {list(shape)}, and the model's is "
                f"{[*wanted[:2], 'steps', *wanted[3:]]}; make it from a recording with this model"
            )


class PocketModel(TorchFamilyModel[PocketSource, PocketOptions, LoadedRoot]):
    """A Pocket-TTS model, from its files or compressed in memory.

    It is opened by the name of a release, from a folder or a configuration, or from an artifact's
    folder; `?temperature=0.5` behind it sets options of `PocketOptions`. It speaks in the voice of
    a recording, of a state that was stored, or of one that the package knows by name.
    """

    family = FAMILY.name
    example = "temperature=0.5&eos_threshold=-3"
    find = find_source
    read = load_networks
    check_recording = check_recording
    roles: ClassVar = {
        "flow_lm.conditioner": "text embedding",
        "flow_lm.input_linear": "projection of latents",
        "flow_lm.transformer": "speech language model",
        "flow_lm.z_proj": "projection to the heads",
        "flow_lm.out_eos": "end of speech",
        "flow_lm.flow_net": "flow head, which makes latents",
        "mimi.quantizer": "projection of latents to the codec",
        "mimi.upsample": "codec's upsampling",
        "mimi.decoder_transformer": "codec's decoder: transformer",
        "mimi.decoder": "codec's decoder: convolutions",
        "mimi.encoder": "codec's encoder, for recordings",
        "mimi.encoder_transformer": "codec's encoder, for recordings: transformer",
        "mimi.downsample": "codec's encoder, for recordings: downsampling",
    }

    def root(self) -> nn.Module:
        """Return the official `TTSModel`, which decodes latent by latent where it has integers.

        By itself its codec takes as many latents at once as are waiting. One range for all of them
        would round the quiet ones by what the loud ones need, which is heard as hiss.
        """
        root = super().root()
        if any(isinstance(part, IntegerLayer) for part in root.modules()):
            vars(root)["max_decoder_frames_per_call"] = 1
        return root

    @property
    def sample_rate(self) -> int:
        """Samples per second, Hz."""
        return int(self.source.settings.mimi.sample_rate)

    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""
        settings, audio = self.source.settings, self.prompt.audio
        stated = settings.flow_lm.transformer
        return {
            "sample rate": f"{self.sample_rate} Hz",
            "transformer": f"{stated.num_layers} layers of width {stated.d_model}",
            "latents": f"{settings.mimi.frame_rate:g} per second, by {settings.flow_lm.flow.type}",
            "temperature": f"{self.options.temperature:g}",
            "voice": self._named_voice() if audio is None else audio.name,
        }

    def generate_latents(self, text: str, *, seed: int | None) -> Latents:
        """Speak as `synthesize` does and return what the language model read."""
        with paired_noise(seed):
            return self._spoken_by.latents(text)

    def read_latents(self, text: str, latents: Latents) -> Reading:
        """Return the answers to latents that another model spoke."""
        return self._spoken_by.read(text, latents)

    def read_at_once(self, text: str, latents: Latents) -> None:
        """Read latents as training records it: a part's text and latents in one call."""
        self._spoken_by.read_at_once(text, latents)

    def objectives(self) -> tuple[Objective, ...]:
        """Return the objectives of training, in the order data flows."""
        return (
            Objective(module="flow_lm", method="backbone", loss="mse", reads=True),
            Objective(module="flow_lm.flow_net", loss="mse"),
            Objective(module="mimi.decoder", loss="waveform"),
        )

    def _named_voice(self) -> str:
        """Return the package's voice that was chosen, or its default for a release; else none."""
        if self.source.voice or not self.source.is_release:
            return self.source.voice
        default = official("default_parameters").get_default_voice_for_language
        return str(default(self.source.config.stem))

    @cached_property
    def _spoken_by(self) -> PocketSpeech:
        root: Any = copy.copy(self.root())  # what is set on it stays off the live one
        root.temp, root.eos_threshold = self.options.temperature, self.options.eos_threshold
        voice: Any = self._named_voice() if self.prompt.audio is None else None
        voice = voice or self._recording()
        with model_errors(f"the voice '{voice}' cannot be read"), quiet():
            state = root.get_state_for_audio_prompt(voice)
            check_state(root, state)
        return PocketSpeech(root=root, state=state)

    def _speech(self) -> PocketSpeech:
        return self._spoken_by

    def _write(self, directory: Path) -> None:
        """Write what the official `load_model` reads, where nothing is compressed."""
        write_settings(self.source, self.options, directory)
        if self.prompt.audio is not None:
            check_recording(self.prompt.audio)
            is_state = self.prompt.audio.suffix == ".safetensors"
            write, name = (shutil.copyfile, STATE) if is_state else (write_recording, REFERENCE)
            write(self.prompt.audio, directory / name)
        elif self._named_voice():  # its state, as the model has it
            write = official("models.model_state").export_model_state
            write(self._spoken_by.state, directory / STATE)
