"""Official models in the format of `save_pretrained`: fetched, read, built without weights.

Every system whose package builds on transformers uses it, whichever release that package asks for.
"""

import io
import json
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.hooks import RemovableHandle

from tts_compress.artifact import MANIFEST_NAME
from tts_compress.errors import ModelError, model_errors
from tts_compress.models.base import ModelFiles
from tts_compress.models.files import check_finite, read_json
from tts_compress.models.torch_model import WEIGHTS

CONFIG = "config.json"
GENERATION = "generation_config.json"

_INDEX = f"{WEIGHTS}.index.json"


def find_folder(
    location: str, kind: str, example: str, fetched: Sequence[str], config: str = CONFIG
) -> Path:
    """Return a folder, or that of a name on the hub, fetched where it is not here."""
    directory = Path(location)
    if directory.is_dir():
        return directory
    parts = location.split("/")
    if len(parts) != 2 or not all(re.fullmatch(r"[\w.-]*\w[\w.-]*", part) for part in parts):
        raise ModelError(
            f"no {kind} model at '{location}'; give a folder with {config} and {WEIGHTS}, "
            f"or a name on the hub such as '{example}'"
        )
    from huggingface_hub import snapshot_download

    # A name nobody has, no network, a full disk: each is an error of another package.
    with model_errors(f"there is no folder {location!r}, and the hub does not give it"):
        return Path(snapshot_download(location, allow_patterns=list(fetched)))


def find_weights(directory: Path) -> tuple[Path, ...]:
    """Return the files with a model's weights; pickled ones are refused."""
    if (directory / WEIGHTS).is_file():
        return (directory / WEIGHTS,)
    if (directory / _INDEX).is_file():
        return _shards(directory / _INDEX)
    pickled = directory / "pytorch_model.bin"
    problem = "only pickled weights, which can run code," if pickled.is_file() else "no weights"
    raise ModelError(f"'{directory}' holds {problem} instead of {WEIGHTS}; fetch or convert it")


def list_files(directory: Path) -> ModelFiles:
    """Return the files of a model's folder."""
    settings = [
        path
        for path in sorted(directory.iterdir())
        if path.suffix in {".jinja", ".json", ".model", ".txt"} and path.name != MANIFEST_NAME
    ]
    return ModelFiles(weights=find_weights(directory), settings=tuple(settings))


def _shards(index: Path) -> tuple[Path, ...]:
    with model_errors(f"cannot read '{index}'"):
        names = set(read_json(index)["weight_map"].values())
    for name in names:
        # A name of another kind could lead out of the folder.
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelError(f"'{index}' names {name!r}, which is not a plain file name")
        if not index.with_name(name).is_file():
            raise ModelError(f"'{index}' names '{name}', which is not there; fetch it")
    if not names:
        raise ModelError(f"'{index}' names no files; fetch it again")
    return tuple(index.with_name(name) for name in sorted(names))


_MOST_WEIGHTS = 10_000
"""Most weights of a model, each of which may be set twice; Bark's largest has about a thousand."""

# Settings in which transformers notes where a process read the model, and what ran first.
_OF_THE_PROCESS = frozenset({"_name_or_path", "_attn_implementation_autoset"})


@contextmanager
def quiet() -> Iterator[None]:
    """Keep bars, remarks, warnings and prints of other packages out of our output in the block."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # no errors
    bars: Any = None
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if (package := sys.modules.get("transformers")) is not None:
                bars = package.logging if package.logging.is_progress_bar_enabled() else None
            if bars is not None:
                bars.disable_progress_bar()
            yield
    finally:
        if bars is not None:
            bars.enable_progress_bar()
        logging.disable(before)


def load_pretrained(official: Any, directory: Path, computed: tuple[str, ...] = ()) -> Any:
    """Return an official model as `from_pretrained` loads it, in FP32 and `eval` mode.

    Args:
        official: The official class.
        directory: The model's folder.
        computed: Endings of the names of weights that a file may lack: they are computed.
    """
    import torch

    with model_errors(f"'{directory}' cannot be loaded"), quiet(), bounded_weights():
        root, report = official.from_pretrained(
            directory,
            **{"torch_dtype" if _is_old() else "dtype": torch.float32},
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    if missing := sorted(name for name in report["missing_keys"] if not name.endswith(computed)):
        raise ModelError(
            f"'{directory}' lacks {len(missing)} weights that its {CONFIG} speaks of, such as "
            f"{missing[0]!r}; fetch it again"
        )
    check_finite(root.named_parameters(), directory)
    return root.float().eval()


def build_empty(path: Path, read: Callable[[], Any], official: Any) -> Any:
    """Return the official model of settings, its weights without values, in `eval` mode.

    Parameters are on torch's `meta` device and take no memory; buffers, which hold what is
    computed from the settings, are real.
    """
    from accelerate import init_empty_weights

    if _is_old():
        from transformers.modeling_utils import no_init_weights
    else:
        from transformers.initialization import no_init_weights
    with model_errors(f"'{path}' cannot be built"), quiet(), bounded_weights():
        settings = read()
        with no_init_weights(), init_empty_weights(False):
            built = official(settings)
        built.tie_weights()  # what is shared is one tensor, and in the file once
    return built.eval()


def write_settings(root: Any, path: Path) -> None:
    """Write the settings of an official object as it does; the same model gives the same bytes."""

    def of_the_model(settings: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in settings if name not in _OF_THE_PROCESS}

    text = root.config.to_json_string()
    settings = json.loads(text, object_pairs_hook=of_the_model)
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _is_old() -> bool:
    """Return True before release 5 of transformers, which renamed some of its parts."""
    import transformers

    return str(transformers.__version__) < "5"


def bounded_weights() -> RemovableHandle:
    """Return a block in which no model is built whose settings ask for more layers than any has.

    It ends with a `ValueError` otherwise.
    """
    left = iter(range(_MOST_WEIGHTS))

    def count(*_: object) -> None:
        if next(left, None) is None:
            raise ValueError(
                f"its settings make more than {_MOST_WEIGHTS:,} weights; check numbers of layers"
            )

    return register_module_parameter_registration_hook(count)
