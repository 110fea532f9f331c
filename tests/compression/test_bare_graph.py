"""Any ONNX graph, calibrated on arrays: every scheme, odd operators, errors, the command line."""

import shutil
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from tests.graphs import Values, make_body, make_model, make_node
from tests.measures import snr_db
from tts_compress.cli import main
from tts_compress.compression import compress
from tts_compress.compression.sound import SpeechComparison, speech
from tts_compress.compression.workbench import Job, Workbench
from tts_compress.errors import QuantizationError, RecipeError
from tts_compress.models import load, open_model
from tts_compress.models.base import GraphModel, OnnxGraph
from tts_compress.onnx.quantize.convert import count_operators
from tts_compress.onnx.quantize.prepare import optimize
from tts_compress.onnx.session import open_session, run_session
from tts_compress.progress import Silent
from tts_compress.recipes.formats import find_scheme
from tts_compress.recipes.recipe import find_recipe, schemes_of

_SCHEMES = [name for name in schemes_of("onnx") if not find_scheme(name).trained]


def _mel(frames: int, seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(1, 12, frames)).astype(np.float32)


@pytest.fixture(scope="module")
def vocoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small seeded vocoder, exported as torch exports, with layers of every kind.

    Upsampling and a residual block have integer forms here; a grouped, a two-dimensional and a
    strided transposed convolution of odd padding have none.
    """
    torch = pytest.importorskip("torch")

    class Vocoder(torch.nn.Module):  # type: ignore[name-defined, misc]  # torch is optional
        def __init__(self) -> None:
            super().__init__()
            layers = torch.nn
            self.conv_pre = layers.Conv1d(12, 32, 7, padding=3)
            self.ups = layers.ConvTranspose1d(32, 16, 8, 4, padding=2)
            self.block = layers.Conv1d(16, 16, 3, dilation=3, padding=3)
            self.grouped = layers.Conv1d(16, 16, 5, padding=2, groups=4)
            self.plane = layers.Conv2d(1, 3, 3, padding=1)
            self.odd = layers.ConvTranspose1d(48, 16, 3, 2)
            self.conv_post = layers.Conv1d(16, 1, 7, padding=3)

        def forward(self, mel: Any) -> Any:
            """Return audio (B, 1, 8·T + 1) of mel (B, 12, T)."""
            act = torch.nn.functional.leaky_relu
            x = self.ups(act(self.conv_pre(mel), 0.1))
            x = x + self.block(act(x, 0.1))
            x = act(self.grouped(x), 0.1)
            x = self.plane(x[:, None]).flatten(1, 2)
            return torch.tanh(3 * self.conv_post(act(self.odd(x))))

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("vocoder") / "vocoder.onnx"
    torch.onnx.export(
        Vocoder().eval(),
        (torch.zeros(1, 12, 20),),
        str(path),
        input_names=["mel"],
        output_names=["audio"],
        dynamic_axes={"mel": {0: "batch_size", 2: "T"}, "audio": {0: "batch_size", 2: "N"}},
        dynamo=False,
    )
    return path


@pytest.fixture(scope="module")
def feeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return calls of several lengths."""
    path = tmp_path_factory.mktemp("feeds") / "feeds.npz"
    np.savez(path, **{f"{i}/mel": _mel(20 + 7 * i, i) for i in range(4)})
    return path


def _run(graph: onnx.ModelProto, mel: Any) -> Any:
    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"mel": mel})[0]


def _number_nodes(graph: onnx.GraphProto) -> None:
    for number, node in enumerate(graph.node):
        node.name = f"{node.op_type}_{number}"


def _name_tensors_as_modules(graph: onnx.GraphProto) -> None:
    """Name a layer's output `conv`, beside its `conv.weight` and `conv.bias`."""
    named = {
        node.output[0]: node.input[1].removesuffix(".weight")
        for node in graph.node
        if len(node.input) > 1 and node.input[1].endswith(".weight")
    }
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = named.get(name, name)


def test_calls_of_a_program_are_those_of_a_file(vocoder: Path, feeds: Path) -> None:
    """Also torch's tensors, and from a generator."""
    torch = pytest.importorskip("torch")
    calls = ({"mel": torch.from_numpy(_mel(20 + 7 * i, i))} for i in range(4))
    of_file, of_calls = (
        compress(vocoder, "int8-static", calibration=given) for given in (feeds, calls)
    )
    assert isinstance(of_file, OnnxGraph)
    assert isinstance(of_calls, OnnxGraph)
    assert of_calls.graph() == of_file.graph()


@pytest.mark.parametrize(
    ("model", "values", "message"),
    [
        ("demo", [], "empty; give texts, or a bare graph"),
        ("graph", [np.ones(3)], "call 0 of the calibration is a ndarray; give dictionaries"),
        ("demo", [{"mel": _mel(9, 0)}], "is a voice, which is calibrated on texts"),
        ("graph", [{"mel": [None]}], "input 'mel' of call 0 is a list; give an array"),
        ("graph", [{"mel": np.ones(3)}], "^the calls of the calibration: array '0/mel' is float64"),
        ("graph", ["Hello."], "calibrated on arrays; .*Hello.* was given: give an .npz"),
        ("graph", 5, "calibration is a int; give"),
        ("demo", {"input": np.ones(3)}, "calibration is a dict; give"),
        ("demo", ["Hello.", 0], "among the texts is a int; give"),
    ],
)
def test_wrong_values_are_told(model: str, values: Any, message: str, vocoder: Path) -> None:
    spec = "demo" if model == "demo" else f"onnx:{vocoder}"
    with pytest.raises(RecipeError, match=message):
        compress(spec, "int8-static", calibration=values)


def test_a_quality_that_cannot_be_judged_is_refused_where_it_is_asked_for(vocoder: Path) -> None:
    """Calls of a few frames were no sound, and the recipe was taken without a word."""
    calls = [{"mel": _mel(9 + number, number)} for number in range(12)]
    plain: Any = compress(f"onnx:{vocoder}", "int8", calibration=calls)
    assert plain.manifest.recipe["quality"] == "fast"
    with pytest.raises(QuantizationError, match=r"no quality of .* can be judged"):
        compress(f"onnx:{vocoder}", "int8", calibration=calls, quality="high")


@pytest.mark.parametrize(
    ("scheme", "rename"),
    [
        *((scheme, lambda _graph: None) for scheme in _SCHEMES),
        ("int8", _number_nodes),
        ("int8", _name_tensors_as_modules),
    ],
)
def test_every_scheme_keeps_the_sound(
    vocoder: Path,
    feeds: Path,
    tmp_path: Path,
    scheme: str,
    rename: Callable[[onnx.GraphProto], None],
) -> None:
    """On a batch of an unseen length; 8 bits in seven layers of random weights leave 25 dB.

    Four bits leave about 20 dB in one layer.
    """
    graph: Any = onnx.load(vocoder)
    rename(graph.graph)
    path = tmp_path / "vocoder.onnx"
    onnx.save(graph, path)
    observes = find_recipe("onnx", scheme).calibration is not None
    small = compress(f"onnx:{path}", scheme, calibration=feeds if observes else None)
    folder = small.save(tmp_path / "small")
    assert sorted(file.name for file in folder.iterdir()) == ["manifest.json", "vocoder.onnx"]
    found: Any = open_model(folder)
    assert found.manifest.counts == count_operators(found.graph())
    assert found.manifest.size_bytes < found.manifest.source.size_bytes
    mel = np.concatenate([_mel(33, 8), _mel(33, 9)])
    wanted = _run(graph, mel)
    audio = _run(found.graph(), mel)
    assert audio.shape == wanted.shape == (2, 1, 8 * 33 + 1)
    assert snr_db(wanted, audio) > (10 if scheme.startswith("int4") else 25)


@pytest.mark.parametrize(
    ("scheme", "form", "domains"),
    [("int8", "qdq", {""}), ("int8-static", "qoperator", {"", "com.microsoft"})],
)
def test_the_other_form_keeps_the_sound(
    vocoder: Path, feeds: Path, scheme: str, form: str, domains: set[str]
) -> None:
    recipe = find_recipe("onnx", scheme).model_copy(update={"format": form})
    small: Any = compress(vocoder, scheme, recipe=recipe, calibration=feeds)
    graph = small.graph()
    assert {node.domain for node in graph.graph.node} == domains
    assert small.manifest.counts == count_operators(graph)
    got = {layer.module: layer.activations for layer in small.manifest.layers}
    assert got["block"] == "static"
    if scheme == "int8":  # whose rules leave the first layer and the narrow last one in FP32
        assert (got["conv_pre"], got["conv_post"]) == ("none", "none")
    mel = _mel(33, 8)
    assert snr_db(_run(onnx.load(vocoder), mel), _run(graph, mel)) > 25


def test_what_has_no_integer_form_is_stored_small(vocoder: Path, feeds: Path) -> None:
    manifest = compress(vocoder, "int8", calibration=feeds).manifest
    assert manifest is not None
    got = {layer.module: layer.activations for layer in manifest.layers}
    assert got == {
        "conv_pre": "none",  # reads the graph's input
        "ups": "static",
        "block": "static",
        "grouped": "none",
        "plane": "none",
        "odd": "none",
        "conv_post": "none",  # makes one channel
    }
    # Few weights save no space.
    assert {layer.weights for layer in manifest.layers if layer.parameters >= 256} == {"int8"}
    assert {layer.weights for layer in manifest.layers if layer.parameters < 256} == {"float32"}
    assert manifest.calibration is not None
    assert (manifest.calibration.set, manifest.calibration.utterances) == ("feeds.npz", 4)


def test_compressed_graph_is_not_compressed_again(
    vocoder: Path, feeds: Path, tmp_path: Path
) -> None:
    folder = compress(vocoder, "int8", calibration=feeds).save(tmp_path / "small")
    for spec in (folder, folder / "vocoder.onnx", f"onnx:{folder / 'vocoder.onnx'}"):
        with pytest.raises(QuantizationError, match=r"already compressed \(int8\)"):
            compress(spec, "int8", calibration=feeds)


def test_noise_that_nobody_reads_changes_nothing(
    vocoder: Path, feeds: Path, tmp_path: Path
) -> None:
    graph = onnx.load(vocoder)
    graph.graph.node.append(make_node("RandomNormalLike", "mel", "idle"))
    onnx.save(graph, tmp_path / "vocoder.onnx")
    plain, idle = (
        compress(f"onnx:{path}", "int8-static", calibration=feeds)
        for path in (vocoder, tmp_path / "vocoder.onnx")
    )
    assert isinstance(plain, OnnxGraph)
    assert isinstance(idle, OnnxGraph)
    assert idle.graph() == plain.graph()


@pytest.mark.parametrize("given", [None, "en", "feeds.toml"])
def test_bare_graph_wants_arrays(vocoder: Path, given: str | None) -> None:
    with pytest.raises(RecipeError, match=r"bare graph, .* on arrays; .*give an \.npz"):
        compress(f"onnx:{vocoder}", "int8", calibration=given)


@pytest.mark.slow
def test_voice_wants_texts(tiny: GraphModel, feeds: Path) -> None:
    with pytest.raises(RecipeError, match=r"is a voice, .* and arrays were given"):
        compress(tiny, "int8", calibration=feeds)


def test_the_scale_of_samples_is_no_damage(vocoder: Path, tmp_path: Path) -> None:
    """Some graphs return samples of 16 bits as real numbers."""
    graph = onnx.load(vocoder)
    final = next(node for node in graph.graph.node if "audio" in node.output)
    final.output[0] = "unscaled"
    graph.graph.initializer.append(
        numpy_helper.from_array(np.array(32768.0, np.float32), "full_scale")
    )
    graph.graph.node.append(make_node("Mul", "unscaled full_scale", "audio"))
    onnx.save(graph, tmp_path / "loud.onnx")
    feeds = tmp_path / "feeds.npz"
    np.savez(feeds, **{f"{i}/mel": _mel(600, i) for i in range(4)})
    damages = []
    for path in (vocoder, tmp_path / "loud.onnx"):
        model: Any = open_model(f"onnx:{path}")
        bench = Workbench(model, find_recipe("onnx", "int8"), calibration=feeds, held_out=1)
        spoken = speech(bench, Job(seed=0, progress=Silent()))
        assert spoken is not None
        comparison = SpeechComparison(spoken, seed=0)
        damages.append(comparison.damage(bench.convert(bench.recipe)))
    assert damages[0].distortion > 0.0
    assert asdict(damages[1]) == pytest.approx(asdict(damages[0]), rel=0.05)


def test_command_line(
    vocoder: Path,
    feeds: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    refused: Callable[..., str],
) -> None:
    target = str(tmp_path / "small")
    arguments = ["quantize", str(vocoder), "--output", target]
    assert main([*arguments, "--calibration", str(feeds)]) == 0
    assert "Conv int8/static" in capsys.readouterr().out
    assert main(["inspect", target]) == 0
    assert "mel float32" in capsys.readouterr().out
    np.savez(tmp_path / "wrong.npz", **{"0/sound": _mel(5, 0)})
    wrong = ["--calibration", str(tmp_path / "wrong.npz"), "--force"]
    assert "no such input; the graph's inputs are mel" in refused(*arguments, *wrong)
    assert "speaks no texts" in refused(
        "synthesize", target, "Hello.", "--output", tmp_path / "x.wav"
    )


@pytest.mark.parametrize("form", ["qoperator", "qdq"])
def test_branches_read_what_integers_made(form: str, tmp_path: Path) -> None:
    """Behind a `Transpose`, onnxruntime ends the process that opens the graph."""
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal((16, 16, 3)) / 7 for name in "abcd"}
    conv = partial(make_node, "Conv", pads=[1, 1])
    branches = {
        "then_branch": make_body([conv("soft c", "then")], {}, {"then": None}),
        "else_branch": make_body([make_node("Neg", "soft", "else")], {}, {"else": None}),
    }
    nodes = [
        conv("x a", "first"),
        conv("first b", "second"),
        make_node("LeakyRelu", "second", "soft"),
        make_node("If", "yes", "either", **branches),
        conv("either d", "y"),
    ]
    shape = [1, 16, "n"]
    inputs: Values = {"x": shape, "yes": (onnx.TensorProto.BOOL, [])}
    onnx.save(make_model(nodes, inputs, {"y": shape}, weights, opset=17), tmp_path / "g.onnx")
    calls: dict[str, Any] = {f"{i}/yes": np.array(True) for i in range(4)}
    calls |= {f"{i}/x": random.standard_normal((1, 16, 90 + i)).astype("f4") for i in range(4)}
    np.savez(tmp_path / "feeds.npz", **calls)
    command = ["quantize", f"onnx:{tmp_path / 'g.onnx'}", "--scheme", "int8", "--format", form]
    command += ["--calibration", str(tmp_path / "feeds.npz"), "--quality", "fast", "--no-time"]
    assert main([*command, "--output", str(tmp_path / "small")]) == 0
    feeds = {"x": calls["0/x"], "yes": np.array(False)}
    whole, small = (
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
        for path in (tmp_path / "g.onnx", tmp_path / "small" / "g.onnx")
    )
    assert snr_db(whole, small) > 20


def _with_weight_norm(graph: onnx.GraphProto) -> None:
    """Replace `w` of some convolutions by `g * v / |v|`, as an export before folding has it."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    nodes = []
    for node in list(graph.node):
        module = node.name.strip("/").replace("/", ".").removesuffix(".Conv")
        if node.op_type == "Conv" and module.startswith(("dec.resblocks", "flow.")):
            stem = node.input[1]
            value = numpy_helper.to_array(tensors[stem])
            norm = np.sqrt(np.square(value).sum(axis=(1, 2), keepdims=True))
            for suffix, part in (("g", norm), ("v", 3 * value)):
                tensor = numpy_helper.from_array(part.astype(np.float32), f"{stem}_{suffix}")
                graph.initializer.append(tensor)
            nodes += [
                make_node("ReduceL2", f"{stem}_v", f"{stem}_n", axes=[1, 2]),
                make_node("Div", f"{stem}_v {stem}_n", f"{stem}_d"),
                make_node("Mul", f"{stem}_d {stem}_g", f"{stem}_w"),
            ]
            node.input[1] = f"{stem}_w"
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


@pytest.mark.slow
@pytest.mark.parametrize("change", [_number_nodes, _with_weight_norm])
def test_counts_are_those_of_the_plain_export(
    tiny_path: Path,
    tmp_path: Path,
    quick_recipe: Callable[[str], Path],
    change: Callable[[onnx.GraphProto], None],
) -> None:
    """By the recipe that names the most modules; to choose formats would need their times."""
    model: Any = onnx.load(tiny_path)
    change(model.graph)
    onnx.save(model, tmp_path / "tiny.onnx")
    shutil.copy(tiny_path.with_name("tiny.onnx.json"), tmp_path)
    changed, plain = (
        compress(load(path), "int8", recipe=quick_recipe("int8"), quality="fast")
        for path in (tmp_path / "tiny.onnx", tiny_path)
    )
    assert changed.manifest is not None
    assert plain.manifest is not None
    assert changed.manifest.counts == plain.manifest.counts
    assert changed.synthesize("Hello.", seed=0).samples.std() > 0.01


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return attention between convolutions, with a mask as a constant and one as a buffer."""
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):  # type: ignore[name-defined, misc]  # torch is optional
        def __init__(self) -> None:
            super().__init__()
            self.pre = torch.nn.Conv1d(12, 32, 3, padding=1)
            self.rows = torch.nn.Linear(32, 96)
            self.post = torch.nn.Conv1d(32, 8, 3, padding=1)
            self.register_buffer("mask", torch.full((80, 80), -torch.inf).triu(1))

        def forward(self, mel: Any) -> Any:
            x = torch.nn.functional.leaky_relu(self.pre(mel), 0.1)
            queries, keys, values = self.rows(x.transpose(1, 2)).chunk(3, dim=2)
            places = torch.arange(mel.shape[2])
            scores = queries @ keys.transpose(1, 2) / 6
            scores = scores.masked_fill(places[None] + 9 < places[:, None], -torch.inf)
            shares = (scores + self.mask[: mel.shape[2], : mel.shape[2]]).softmax(2)
            return torch.tanh(self.post(x + (shares @ values).transpose(1, 2)))

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("masked") / "masked.onnx"
    torch.onnx.export(
        Attention().eval(),
        (torch.zeros(1, 12, 20),),
        str(path),
        input_names=["mel"],
        output_names=["y"],
        dynamic_axes={"mel": {2: "T"}, "y": {2: "N"}},
        dynamo=False,
    )
    return path


def _infinite(nodes: Any, operator: str) -> bool:
    return any(
        node.op_type == operator
        and any(np.isinf(onnx.numpy_helper.to_array(entry.t)).any() for entry in node.attribute)
        for node in nodes
    )


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    ("scheme", "simplified"), [*((scheme, False) for scheme in _SCHEMES), ("int8", True)]
)
def test_every_scheme_takes_masks_of_infinities_and_is_opened_again(
    exported: Path, tmp_path: Path, scheme: str, simplified: bool
) -> None:
    """Artifacts of such graphs were written, and then refused by every command.

    A `Constant` of the original is an initializer of the artifact; the original's are those where
    other exporters, or an optimizer, wrote it.
    """
    path, model = exported, onnx.load(exported)
    assert _infinite(model.graph.node, "Constant")
    if simplified:
        path = tmp_path / "simplified.onnx"
        onnx.save(optimize(model, fuse=False), path)
    feeds = tmp_path / "feeds.npz"
    np.savez(feeds, **{f"{i}/mel": _mel(20 + 7 * i, i) for i in range(3)})
    observes = find_recipe("onnx", scheme).calibration is not None
    small = compress(f"onnx:{path}", scheme, calibration=feeds if observes else None)
    opened: Any = open_model(small.save(tmp_path / "small"))
    (expected,), (given,) = (
        run_session(open_session(graph, "it"), {"mel": _mel(33, 9)}, "it")
        for graph in (model, opened.graph())
    )
    assert snr_db(expected, given) > 20
