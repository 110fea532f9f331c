"""The packages behind Parler-TTS: stand-ins for those that are missing, and the messages."""

import importlib
import importlib.util
import logging
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tts_compress.errors import ModelError
from tts_compress.models.parler.model import load_packages
from tts_compress.models.pretrained import quiet
from tts_compress.models.stand_ins import offer_audiotools

_NAMES = ("audiotools", "argbind")


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the real packages, if there are any, impossible to import; put back what was there."""
    pytest.importorskip("torch")
    kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] in _NAMES}
    for name in kept:
        del sys.modules[name]

    class Refuse:
        def find_spec(self, name: str, *_: Any) -> None:
            if name.partition(".")[0] in _NAMES:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Refuse(), *sys.meta_path])
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in _NAMES]:
        del sys.modules[name]
    sys.modules.update(kept)


@pytest.mark.usefixtures("without_packages")
def test_what_the_codec_imports_is_there() -> None:
    """These are the import statements of the codec's modules."""
    offer_audiotools()
    tools: Any = importlib.import_module("audiotools")
    learning: Any = importlib.import_module("audiotools.ml")
    core: Any = importlib.import_module("audiotools.core")
    bind: Any = importlib.import_module("argbind").bind
    assert tools.ml is learning
    assert learning.BaseModel.INTERN is not learning.BaseModel.EXTERN
    assert core.util is importlib.import_module("audiotools.core.util")
    assert isinstance(learning.Accelerator, type)
    assert len(bind(group="x", positional=True)([1])) == 1
    for name in _NAMES:
        assert importlib.util.find_spec(name) is not None


@pytest.mark.usefixtures("without_packages")
def test_a_base_model_is_a_module_that_knows_its_device() -> None:
    import torch

    offer_audiotools()
    base: Any = importlib.import_module("audiotools.ml").BaseModel

    class Network(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 3)

    network = Network()
    assert isinstance(network, torch.nn.Module)
    assert network.device == torch.device("cpu")
    assert network.to("meta").device == torch.device("meta")


@pytest.mark.usefixtures("without_packages")
def test_what_is_not_there_says_so_when_it_is_used() -> None:
    offer_audiotools()
    tools: Any = importlib.import_module("audiotools")
    assert not isinstance(3, tools.AudioSignal)  # as the codec's losses check
    with pytest.raises(ModelError, match="pip install descript-audiotools-unofficial"):
        tools.AudioSignal("speech.wav")
    with pytest.raises(ModelError, match=r"util\.find_audio"):
        importlib.import_module("audiotools.core.util").find_audio(".")
    with pytest.raises(ModelError, match="pip install argbind"):
        importlib.import_module("argbind").parse_args()


@pytest.mark.parametrize("version", ["4.44.2", "4.50.0", "4.57.6", "5.18.0.dev0"])
def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    other = types.ModuleType("transformers")
    other.__dict__["__version__"] = version
    monkeypatch.setitem(sys.modules, "transformers", other)
    with pytest.raises(ModelError, match=rf"transformers {version} .*==4\.46\.1"):
        load_packages()


@pytest.mark.usefixtures("tiny_parler_dir")
def test_loading_changes_nothing_for_others() -> None:
    """The codec's command line, which its package imports, switches every user warning off."""
    script = (
        "import warnings, logging\n"
        "before = list(warnings.filters)\n"
        "from tts_compress.models.parler.model import load_packages\n"
        "_, transformers = load_packages()\n"
        "assert not any(f[0] == 'ignore' and f[2] is UserWarning for f in warnings.filters)\n"
        "assert transformers.logging.get_verbosity() == logging.WARNING\n"
    )
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "Flash attention" not in run.stderr  # nor does it talk


@pytest.mark.usefixtures("tiny_parler_dir")
def test_quiet_ends_with_its_block() -> None:
    _, transformers = load_packages()
    before = transformers.logging.get_verbosity(), logging.getLogger("parler_tts").level
    with pytest.raises(KeyError), quiet():
        raise KeyError
    assert before == (transformers.logging.get_verbosity(), logging.getLogger("parler_tts").level)


def test_speaking_says_nothing_on_standard_error(
    tiny_parler: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny_parler.synthesize("please call again", seed=0)
    printed = capfd.readouterr()
    assert not printed.out
    assert not printed.err


@pytest.mark.slow
def test_a_broken_package_is_replaced_as_a_whole(tmp_path: Any) -> None:
    """Its dependencies are compiled for other versions of torch; the linker's error is no import's.

    Modules of it that were loaded before the error must not be found beside the stand-in.
    """
    pytest.importorskip("torch")
    package = tmp_path / "audiotools"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from . import early\nraise OSError('libc10_cuda.so: cannot open shared object')\n"
    )
    (package / "early.py").write_text("")
    script = (
        "import sys\n"
        "from tts_compress.models.stand_ins import offer_audiotools\n"
        "offer_audiotools()\n"
        "import audiotools\n"
        "assert audiotools.ml.BaseModel\n"
        "assert 'audiotools.early' not in sys.modules\n"
    )
    command = [sys.executable, "-c", script]
    run = subprocess.run(
        command, check=False, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}
    )
    assert run.returncode == 0, run.stderr
