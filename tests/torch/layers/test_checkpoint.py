"""Trees of modules in a file: what comes back, in how much memory, and what is refused."""

import copy
import json
import stat
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from tts_compress import compress, load_module, save_module
from tts_compress.errors import ArtifactError, ModelError
from tts_compress.progress import Silent
from tts_compress.recipes.recipe import Recipe, find_recipe
from tts_compress.torch.convert import Converted, convert
from tts_compress.torch.layers.checkpoint import TensorFile, restore_root, stored_bytes, write_root

safetensors = pytest.importorskip("safetensors.torch")


class Net(nn.Module):
    """Every kind of layer, a shared weight, both kinds of buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 64)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.conv = parametrizations.weight_norm(nn.Conv1d(64, 64, 3, padding=1))
        self.up = nn.ConvTranspose1d(64, 32, 8, stride=4, padding=2)
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(64, 20, bias=False)
        self.head.weight = self.embed.weight
        self.kept: torch.Tensor
        self.computed: torch.Tensor
        self.register_buffer("kept", torch.arange(3.0))
        self.register_buffer("computed", torch.arange(4.0), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return audio of a kind."""
        x = self.embed(ids)
        x = x + self.attention(x, x, x)[0]
        y = self.norm(self.up(self.conv(x.transpose(1, 2)))) + self.head(x).mean()
        return torch.as_tensor(y + self.kept.sum() + self.computed.sum())


@pytest.fixture
def net() -> Net:
    """Return a seeded network."""
    torch.manual_seed(0)
    return Net().eval()


IDS = torch.arange(20).view(2, 10)

SCHEMES = ["int8", "int8-weight-only", "int4-weight-only", "fp16", "bf16"]


def _recipe(scheme: str) -> Recipe:
    """Return the shipped recipe, without embeddings: the head shares the table."""
    shipped = find_recipe("module", scheme)
    rules = [rule.model_copy(update={"exclude": ("embed", "head")}) for rule in shipped.component]
    return shipped.model_copy(update={"component": tuple(rules)})


def _compressed(net: nn.Module, scheme: str) -> Converted:
    return convert(net, _recipe(scheme), None, progress=Silent())


@pytest.mark.filterwarnings("ignore:this processor:tts_compress.errors.TTSCompressWarning")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_was_written_comes_back(net: Net, tmp_path: Path, scheme: str) -> None:
    done = _compressed(net, scheme)
    path = tmp_path / "model.safetensors"
    write_root(done.root, path, done.layers)
    with torch.device("meta"):
        skeleton = Net().eval()
    skeleton.computed = torch.arange(4.0)  # what a system computes when it is built
    restore_root(skeleton, done.layers, path)
    with torch.inference_mode():
        assert torch.equal(skeleton(IDS), done.root(IDS))
    assert skeleton.head.weight is skeleton.embed.weight
    # The file is what the tensors are, and a header.
    stored = sum(t.nbytes for t in safetensors.load_file(path).values())
    assert stored == stored_bytes(done.root)
    assert path.stat().st_size - stored < 10_000


def test_an_uncompressed_tree_comes_back_as_it_was(net: Net, tmp_path: Path) -> None:
    write_root(net, tmp_path / "model.safetensors")
    other = Net().eval()
    restore_root(other, (), tmp_path / "model.safetensors")
    expected = net.state_dict()
    assert other.state_dict().keys() == expected.keys()
    assert all(torch.equal(found, expected[name]) for name, found in other.state_dict().items())
    torch.testing.assert_close(other(IDS), net(IDS))  # attention adds in no fixed order


def test_weights_that_only_a_file_stores_in_sixteen_bits(net: Net, tmp_path: Path) -> None:
    """The head and the table, which it shares, too."""
    shipped = find_recipe("module", "int8-weight-only")
    rules = [r.model_copy(update={"weights": "float16"}) for r in shipped.component]
    recipe = shipped.model_copy(update={"component": tuple(rules)})
    done = convert(net, recipe, None, progress=Silent())
    assert isinstance(done.root, Net)
    assert done.root.head.weight is done.root.embed.weight
    path = tmp_path / "model.safetensors"
    write_root(done.root, path, done.layers)
    assert safetensors.load_file(path)["up.weight"].dtype == torch.float16
    other = Net().eval()
    restore_root(other, done.layers, path)
    assert other.up.weight.dtype == torch.float32
    assert torch.equal(other(IDS), done.root(IDS))
    assert "ConvTranspose1d float16/none" in done.counts


def test_other_architectures_and_damaged_files_are_refused(net: Net, tmp_path: Path) -> None:
    done = _compressed(net, "int8")
    path = tmp_path / "model.safetensors"
    write_root(done.root, path, done.layers)
    renamed = tuple(replace(layer, module=layer.module + "x") for layer in done.layers)
    with pytest.raises(ArtifactError, match="the system has no"):
        restore_root(Net(), renamed, path)
    fewer, more, wider = Net(), Net(), Net()
    del fewer.norm
    more.extra = nn.Linear(2, 2)
    wider.norm = nn.BatchNorm1d(33)
    with pytest.raises(ArtifactError, match="does not have"):
        restore_root(fewer, done.layers, path)
    with pytest.raises(ArtifactError, match=r"no tensor 'extra\.weight'"):
        restore_root(more, done.layers, path)
    with pytest.raises(ArtifactError, match="another shape"):
        restore_root(wider, done.layers, path)
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    with pytest.raises(ArtifactError, match="not a readable safetensors file"):
        restore_root(Net(), done.layers, path)


_TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).view(2, 3),
    "b": torch.tensor(3, dtype=torch.int64),
    "c": torch.empty(0, 4),
    "d": torch.randn(3, 5).bfloat16(),
    "e": torch.arange(-3, 4, dtype=torch.int8),
    "f": torch.tensor([True, False]),
}


def test_tensors_are_read_as_the_library_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.save_file(_TENSORS, path, metadata={"format": "pt"})
    file = TensorFile(path)
    assert file.names == set(_TENSORS)
    for name, tensor in safetensors.load_file(path).items():
        assert torch.equal(file.read(name), tensor)
        assert file.read(name).dtype == tensor.dtype


_HEADERS = [
    b"",
    b"\x00" * 4,
    struct.pack("<Q", 1 << 60) + b"{}",
    struct.pack("<Q", 50) + b"{}",
    struct.pack("<Q", 2) + b"[]",
    struct.pack("<Q", 4) + b"null",
]


def _header(entry: object) -> bytes:
    text = json.dumps({"a": entry}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(8)


_ENTRIES = [
    {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]},
    {"dtype": "F32", "shape": [2], "data_offsets": [0, 80]},
    {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]},
    {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
    {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
    {"dtype": "F32", "shape": [1 << 62, 1 << 62], "data_offsets": [0, 8]},
    {"dtype": "F32", "shape": "xx", "data_offsets": [0, 8]},
    {"dtype": "F32", "data_offsets": [0, 8]},
    [1],
]


@pytest.mark.parametrize("content", [*_HEADERS, *map(_header, _ENTRIES)])
def test_hostile_files_end_in_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="not a readable safetensors file"):
        TensorFile(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_damage_to_a_header_is_an_error_or_harmless(
    tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.save_file(_TENSORS, path)
    content = bytearray(path.read_bytes())
    length = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, length - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    try:
        file = TensorFile(path)
    except ArtifactError:
        return
    for name in file.names:
        file.read(name)


_LOADS = """
import sys, torch
from torch import nn
from tts_compress.artifact import LayerRecord
from tts_compress.torch.layers.checkpoint import restore_root
from tts_compress.torch.layers.checkpoint import TensorFile
def status(field):
    lines = open("/proc/self/status").read().splitlines()
    return int([l for l in lines if l.startswith(field)][0].split()[1]) * 1024
width, depth = 1024, 24
with torch.device("meta"):
    root = nn.Sequential(*(nn.Linear(width, 2 * width) for _ in range(depth)))
layers = [LayerRecord(module=str(i), operator="Linear", weights="int8", activations=sys.argv[2],
          parameters=0) for i in range(depth)]
# What the first packing costs, once in a process, is not the model's.
torch.ops.quantized.linear_prepack(torch.quantize_per_channel(torch.zeros(16, 16), torch.ones(16),
          torch.zeros(16), 0, torch.qint8), None)
idle = status("VmRSS")
restore_root(root, layers, __import__("pathlib").Path(sys.argv[1]))
print(status("VmHWM") - idle)
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="needs Linux's account of memory"
)
@pytest.mark.slow
@pytest.mark.parametrize("activations", ["dynamic", "none"])
def test_loading_takes_little_more_memory_than_the_file(tmp_path: Path, activations: str) -> None:
    width, depth = 1024, 24
    tensors = {}
    for i in range(depth):
        tensors[f"{i}.weight"] = torch.randint(-127, 128, (2 * width, width), dtype=torch.int8)
        tensors[f"{i}.weight_scale"] = torch.rand(2 * width) + 0.1
        tensors[f"{i}.bias"] = torch.zeros(2 * width)
    path = tmp_path / "model.safetensors"
    safetensors.save_file(tensors, path)
    command = [sys.executable, "-c", _LOADS, str(path), activations]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 1.3 * path.stat().st_size


def _encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2)
    return nn.Sequential(nn.Embedding(9, 64), encoder, nn.Linear(64, 5)).eval()


_IDS = torch.arange(9).view(1, 9)


def test_what_was_saved_computes_the_same(tmp_path: Path) -> None:
    small = compress(_encoder(), "int8")
    path = save_module(small, tmp_path / "small.safetensors")
    with torch.device("meta"):
        skeleton = _encoder()
    with torch.inference_mode():
        for module in (_encoder(), skeleton):
            assert torch.equal(load_module(module, path)(_IDS), small(_IDS))
    assert stat.S_IMODE(path.stat().st_mode) & 0o044
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_recurrent_layer_in_fp32_computes_the_same(tmp_path: Path) -> None:
    """Torch's GRU sums in another order where its weights require gradients, as before saving."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.GRU(64, 64, 2, batch_first=True)).eval()
    shipped = find_recipe("module", "int8")
    rules = [rule.model_copy(update={"exclude": ("1",)}) for rule in shipped.component]
    small = compress(net, "int8", recipe=shipped.model_copy(update={"component": tuple(rules)}))
    again = load_module(copy.deepcopy(net), save_module(small, tmp_path / "small.safetensors"))
    x = torch.randn(2, 50, 64)
    with torch.inference_mode():
        assert torch.equal(again(x)[0], small(x)[0])
    assert not any(parameter.requires_grad for parameter in small.parameters())
    assert all(parameter.requires_grad for parameter in net.parameters())


@pytest.mark.parametrize(
    "layer", [nn.Linear(32, 16), nn.ConvTranspose1d(16, 16, 4, stride=2)], ids=["linear", "conv"]
)
def test_a_layer_alone(tmp_path: Path, layer: nn.Module) -> None:
    x = torch.randn(1, 16, 32)
    small = compress(layer, "int8")
    path = save_module(small, tmp_path / "layer.safetensors")
    with torch.inference_mode():
        again = load_module(layer, path)
        assert torch.equal(again(x), small(x))
    assert type(again) is type(small)


def test_parts_that_share_memory_are_saved(tmp_path: Path) -> None:
    """The library refuses to write memory twice, with a traceback."""
    net: Any = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.LayerNorm(64))
    net[2].weight = nn.Parameter(net[1].weight.detach())
    net.register_buffer("part", net[1].get_parameter("weight").detach()[8:])
    small = compress(net, "int8-weight-only")
    loaded = load_module(copy.deepcopy(net), save_module(small, tmp_path / "net.safetensors"))
    for name, tensor in small.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def test_a_buffer_that_no_file_holds_needs_values(tmp_path: Path) -> None:
    """It stayed without memory, and failed when it was first computed with."""

    def build() -> nn.Module:
        net = nn.Sequential(nn.Linear(64, 64))
        net.register_buffer("steps", torch.arange(64.0), persistent=False)
        return net

    path = save_module(compress(build(), "int8"), tmp_path / "net.safetensors")
    with torch.device("meta"):
        empty = build()
    with pytest.raises(ModelError, match=r"buffer 'steps' .*build the module without"):
        load_module(empty, path)
    assert torch.equal(load_module(build(), path).get_buffer("steps"), torch.arange(64.0))


def test_the_same_module_gives_the_same_bytes(tmp_path: Path) -> None:
    """Safetensors keeps metadata in a hash map, which orders two entries by chance."""
    small = compress(nn.Linear(64, 64), "int8-weight-only")
    files = [save_module(small, tmp_path / f"{number}.safetensors") for number in range(8)]
    assert len({file.read_bytes() for file in files}) == 1


@pytest.mark.parametrize("scheme", ["int8", "int8-weight-only", "int4-weight-only"])
@pytest.mark.parametrize(
    ("layer", "other"),
    [
        (nn.Linear(64, 64), nn.Linear(64, 32)),
        (nn.Conv1d(64, 64, 3), nn.Conv1d(64, 64, 5)),
        (nn.ConvTranspose1d(64, 64, 8, 4), nn.ConvTranspose1d(64, 32, 8, 4)),
        (nn.LSTM(64, 64), nn.LSTM(64, 32)),
        (nn.Embedding(64, 64), nn.Embedding(80, 64)),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_of_another_size_are_refused(
    tmp_path: Path, scheme: str, layer: nn.Module, other: nn.Module
) -> None:
    """They were taken, and computed with the sizes of the file."""
    path = tmp_path / "small.safetensors"
    save_module(compress(nn.Sequential(layer), scheme), path)
    with pytest.raises(ArtifactError, match="layer '0': its weight is stored in shape"):
        load_module(nn.Sequential(other), path)


def test_what_cannot_be_saved_or_loaded_says_why(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    with pytest.raises(ModelError, match="no compressed layer"):
        save_module(_encoder(), path)
    small = compress(_encoder(), "int8")
    save_module(small, path)
    with pytest.raises(ArtifactError, match="exists"):
        save_module(small, path)
    save_module(small, path, force=True)
    with pytest.raises(ArtifactError, match="the system has no"):
        load_module(nn.Linear(3, 3), path)
    a_class: Any = nn.Linear
    with pytest.raises(ModelError, match=r"give a module to fill, such as Net\(\), and the path"):
        load_module(a_class, path)
    with pytest.raises(ArtifactError, match="cannot write"):
        save_module(small, tmp_path / "none" / "small.safetensors")
    safetensors.save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ArtifactError, match="not written by save_module"):
        load_module(_encoder(), tmp_path / "other.safetensors")
