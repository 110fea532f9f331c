"""Models that have one component of their compressed form."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.measures import snr_db
from tts_compress.artifact import Manifest
from tts_compress.audio import Audio
from tts_compress.compression import compress
from tts_compress.compression.hybrid import compressed_components, hybrids, with_component
from tts_compress.errors import ModelError
from tts_compress.models import load
from tts_compress.models.base import GraphModel, Speaking, TTSModel
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.quantize.convert import convertible_graph
from tts_compress.recipes.recipe import find_recipe

_TEXT = "The old clock in the hall strikes twelve."


def _voice(spec: Path) -> GraphModel:
    found = load(spec)
    assert isinstance(found, GraphModel)
    return found


def _hybrids(reference: TTSModel, candidate: TTSModel) -> dict[str, Any]:
    return dict(hybrids(reference, candidate, compressed_components(candidate)))


def _coarse(voice: GraphModel, component: str) -> GraphModel:
    """Return an INT8 voice with the weights of a component in three bits."""
    graph = voice.graph()
    for tensor in graph.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if f"{component}." in tensor.name and values.dtype.itemsize == 1 and values.ndim > 1:
            tensor.CopyFrom(numpy_helper.from_array(values // 32 * 32, tensor.name))
    assert voice.manifest is not None
    changed = voice.with_graphs({"": graph}, voice.manifest)
    assert isinstance(changed, GraphModel)
    return changed


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["int8", "fp16"])
def test_a_hybrid_is_what_compressing_that_component_alone_gives(
    scheme: str,
    tiny: GraphModel,
    compressed: Callable[[str], Path],
    quick_recipe: Callable[[str], Path],
) -> None:
    """An independent way to the same model; flow and decoder leave the timing as it is."""
    recipe = find_recipe("piper", scheme, quick_recipe(scheme))
    before = tiny.synthesize(_TEXT, seed=3).samples
    found = _hybrids(tiny, _voice(compressed(scheme)))
    assert list(found) == ["enc_p", "dp", "flow", "dec"]
    for name in ("flow", "dec"):
        others = tuple(f"{other}.*" for other in found if other != name)
        rules = tuple(
            rule.model_copy(update={"exclude": (*rule.exclude, *others)})
            for rule in recipe.component
        )
        alone = compress(tiny, scheme, recipe=recipe.model_copy(update={"component": rules}))
        expected = alone.synthesize(_TEXT, seed=3).samples
        made = found[name].synthesize(_TEXT, seed=3).samples
        damage = snr_db(before, expected)
        assert snr_db(before, made) == pytest.approx(damage, abs=1.5), name
        assert snr_db(expected, made) > damage + 3, name


@pytest.mark.slow
def test_damage_in_a_component_is_in_its_hybrid_alone(
    tiny: GraphModel, compressed: Callable[[str], Path]
) -> None:
    small = _voice(compressed("int8"))
    good, bad = _hybrids(tiny, small), _hybrids(tiny, _coarse(small, "dec"))
    for name in ("enc_p", "dp", "flow"):
        assert good[name].graph() == bad[name].graph(), name
    before = tiny.synthesize(_TEXT, seed=3).samples
    levels = [
        snr_db(before, voice.synthesize(_TEXT, seed=3).samples)
        for voice in (good["dec"], bad["dec"])
    ]
    assert levels[1] < levels[0] - 10


@pytest.mark.slow
def test_noise_is_drawn_as_often_as_in_the_original(
    tiny: GraphModel, compressed: Callable[[str], Path]
) -> None:
    """Else the noise of one operator would be that of another, and the voices no pair."""
    expected = [value.name for value in feed_noise(tiny.graph()).graph.input]
    for name, voice in _hybrids(tiny, _voice(compressed("int8"))).items():
        assert [value.name for value in feed_noise(voice.graph()).graph.input] == expected, name


@pytest.mark.slow
def test_a_component_of_another_graph_is_refused(
    tiny: GraphModel, compressed: Callable[[str], Path]
) -> None:
    base = convertible_graph(tiny.graph(), "qoperator", batch_one=True).finish()
    other = _voice(compressed("int8")).graph()
    for node in other.graph.node:
        for names in (node.input, node.output):
            names[:] = [f"{name}x" if name.startswith("/flow") else name for name in names]
    with pytest.raises(ModelError, match="'dec' cannot be parted"):
        with_component(base, other, "dec")


@pytest.mark.slow
def test_a_hybrid_is_saved_like_any_artifact(
    tiny: GraphModel, compressed: Callable[[str], Path], tmp_path: Path
) -> None:
    voice = _hybrids(tiny, _voice(compressed("int8")))["dec"]
    again = load(voice.save(tmp_path / "hybrid"))
    assert again.manifest is not None
    assert {layer.module.split(".")[0] for layer in again.manifest.layers} == {"dec"}
    np.testing.assert_array_equal(
        again.synthesize(_TEXT, seed=3).samples, voice.synthesize(_TEXT, seed=3).samples
    )
    onnx.checker.check_model(voice.graph())


def test_what_cannot_be_taken_apart_is_refused(
    tiny: GraphModel, compressed: Callable[[str], Path]
) -> None:
    with pytest.raises(ModelError, match=r"tiny\.onnx' has no manifest.*`tts-compress quantize`"):
        compressed_components(tiny)
    small = _voice(compressed("int8"))
    assert small.manifest is not None
    layers = tuple(
        replace(layer, weights="float32", activations="none") for layer in small.manifest.layers
    )
    kept: Any = small.with_graphs({"": small.graph()}, replace(small.manifest, layers=layers))
    with pytest.raises(ModelError, match=r"no component of .* is compressed"):
        compressed_components(kept)
    some = tuple(layer for layer in small.manifest.layers if layer.module.startswith("dec"))
    part: Any = small.with_graphs({"": small.graph()}, replace(small.manifest, layers=some))
    assert compressed_components(part) == ["dec"]


class _System:
    """A system in torch of two components."""

    family, sample_rate, spec = "module", 8000, "toy"
    manifest: Manifest | None = None

    def __init__(self, root: Any) -> None:
        self._root = root
        self.speakers: dict[str, int] = {}
        self.speaking = Speaking()

    def root(self) -> Any:
        """Return the live components."""
        return self._root

    def with_root(self, root: Any, manifest: Manifest | None) -> "_System":
        """Return a system around other components."""
        made = _System(root)
        made.manifest = manifest
        return made

    def components(self) -> dict[str, Any]:
        """Return the names of the two."""
        return {"encoder": None, "vocoder": None}

    def synthesize(self, text: str, *, seed: int | None = 0) -> Audio:
        """Speak a little."""
        import torch

        del seed
        state = torch.full((4, 16), float(len(text)))
        with torch.no_grad():
            for name in ("encoder", "vocoder"):
                state = torch.tanh(self._root.get_submodule(name)(state))
        return Audio(samples=state.flatten().numpy(), sample_rate=8000)

    def files(self) -> Any:
        """Raise: it was made in memory."""
        raise ModelError("no files")

    def describe(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    save = open_runtime = describe
    named_calls = speaking_as = objectives = describe


def test_modules_are_put_into_the_reference_one_at_a_time() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    weight_norm = torch.nn.utils.parametrizations.weight_norm
    parts = {
        "encoder": weight_norm(torch.nn.Linear(16, 16)),
        "vocoder": torch.nn.Sequential(torch.nn.Linear(16, 16)),
    }
    reference: Any = _System(torch.nn.ModuleDict(parts).eval())
    candidate: Any = compress(reference, "int8-weight-only")
    found = _hybrids(reference, candidate)
    assert list(found) == ["encoder", "vocoder"]
    assert [layer.module for layer in found["vocoder"].manifest.layers] == ["vocoder.0"]
    held = found["encoder"].root()
    assert held["encoder"] is candidate.root()["encoder"]
    assert torch.equal(held["vocoder"][0].weight, reference.root()["vocoder"][0].weight)
    assert torch.nn.utils.parametrize.is_parametrized(reference.root()["encoder"])
    audios = [model.synthesize("abc", seed=0).samples for model in (reference, *found.values())]
    assert not np.array_equal(audios[0], audios[1])
    assert not np.array_equal(audios[0], audios[2])


def test_models_of_two_kinds_make_no_hybrid(
    tiny: GraphModel, compressed: Callable[[str], Path]
) -> None:
    system: Any = _System(None)
    with pytest.raises(ModelError, match="are not models of one kind"):
        _hybrids(system, _voice(compressed("int8")))
    assert tiny.manifest is None
