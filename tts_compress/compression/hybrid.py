"""Models that have one component of their compressed form, to find the one that did the damage."""

from collections.abc import Iterator
from dataclasses import replace

import onnx

from tts_compress.artifact import LayerRecord, Manifest
from tts_compress.errors import ModelError
from tts_compress.models.base import GraphModel, TorchModel, TTSModel
from tts_compress.onnx.hybrid import with_component
from tts_compress.onnx.quantize.convert import convertible_graph
from tts_compress.recipes.formats import Activations, Weights


def compressed_components(candidate: TTSModel) -> list[str]:
    """Return the names of the components that a recipe changed, in the order data flows.

    Raises:
        ModelError: The model has no manifest, or none of its components was changed.
    """
    if candidate.manifest is None:
        raise ModelError(
            f"'{candidate.spec}' has no manifest, so that nobody knows what was compressed in it; "
            "components are compared of artifacts that `tts-compress quantize` or `qat` wrote"
        )
    changed = [layer.module for layer in candidate.manifest.layers if _is_changed(layer)]
    found = [n for n in candidate.components() if any(_is_part(m, n) for m in changed)]
    if not found:
        raise ModelError(f"no component of '{candidate.spec}' is compressed")
    return found


def hybrids(
    reference: TTSModel, candidate: TTSModel, components: list[str]
) -> Iterator[tuple[str, TTSModel]]:
    """Yield for each component the reference with that of the candidate, as it is there.

    Args:
        reference: The model that the candidate was made from.
        candidate: The compressed model, with its manifest.
        components: Names that `compressed_components` returned.

    Raises:
        ModelError: They are not made alike, or a component cannot be parted from the others.
    """
    manifest = candidate.manifest
    assert manifest is not None, "compressed components are those of a manifest"
    if isinstance(reference, GraphModel) and isinstance(candidate, GraphModel):
        yield from _graph_hybrids(reference, candidate, manifest, components)
    elif isinstance(reference, TorchModel) and isinstance(candidate, TorchModel):
        for name in components:
            yield name, _torch_hybrid(reference, candidate, name)
    else:
        raise ModelError(
            f"'{candidate.spec}' and '{reference.spec}' are not models of one kind; give the "
            "reference that the candidate was made from"
        )


def _graph_hybrids(
    reference: GraphModel, candidate: GraphModel, manifest: Manifest, components: list[str]
) -> Iterator[tuple[str, TTSModel]]:
    """Yield hybrids of a graph's components, and of graphs that follow it, each as a whole."""
    base: onnx.ModelProto | None = None
    for name in components:
        if name in candidate.parts:
            if name not in reference.parts:
                raise ModelError(
                    f"'{reference.spec}' has no graph '{name}', but '{candidate.spec}'"
                )
            changed = {name: candidate.graph(name)}
        else:
            if base is None:
                form = manifest.recipe["format"]
                base = convertible_graph(reference.graph(), form, batch_one=True).finish()
            changed = {"": with_component(base, candidate.graph(), name)}
        yield name, reference.with_graphs(changed, _only(manifest, name))


def _torch_hybrid(reference: TorchModel, candidate: TorchModel, name: str) -> TorchModel:
    from tts_compress.torch.layers.module_surgery import (
        copy_sharing_tensors,
        normalize,
        replace_module,
    )

    # As a compressed model is: so is it restored from its file.
    root = normalize(copy_sharing_tensors(reference.root())).eval()
    root = replace_module(root, name, candidate.root().get_submodule(name))
    assert candidate.manifest is not None
    return reference.with_root(root, _only(candidate.manifest, name))


def _only(manifest: Manifest, component: str) -> Manifest:
    """Return a manifest with the layers of one component."""
    layers = tuple(layer for layer in manifest.layers if _is_part(layer.module, component))
    return replace(manifest, layers=layers, counts={}, files={})


def _is_part(module: str, component: str) -> bool:
    return module == component or module.startswith((f"{component}.", f"{component}:"))


def _is_changed(layer: LayerRecord) -> bool:
    return (layer.weights, layer.activations) != (Weights.FLOAT32, Activations.NONE)
