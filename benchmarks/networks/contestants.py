"""FP32, what is in use today, and our schemes, each as a module of the same structure."""

import importlib
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.networks.network import Network, Step
from tts_compress.progress import Silent
from tts_compress.recipes.recipe import find_recipe
from tts_compress.torch.convert import Converted, convert
from tts_compress.torch.layers.integer import IntegerLayer
from tts_compress.torch.layers.module_surgery import copy_sharing_tensors


def make_scheme(network: Network, root: nn.Module, scheme: str) -> Converted:
    """Return a network compressed by its family's recipe; after `module:` by any module's."""
    family, _, name = scheme.rpartition(":")
    recipe = find_recipe(family or network.family, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the table shows what was converted
        return convert(root, recipe, None, progress=Silent())


def make_peer(network: Network, root: nn.Module, name: str) -> Step:
    """Return a function that runs a network as a peer does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch deprecates is what people use
        return PEERS[name](network, root)


def _within(context: Callable[[], AbstractContextManager[object]], run: Step) -> Step:
    def step() -> torch.Tensor:
        with context():
            return run()

    return step


def _int8_compiled(network: Network, root: nn.Module) -> Step:
    small = make_scheme(network, root, "int8").root
    disable: Any = torch.compiler.disable
    for layer in small.modules():
        if isinstance(layer, IntegerLayer):  # the compiler cannot look into its kernel
            vars(layer)["forward"] = disable(layer.forward)
    return network.call(compile_blocks(network, small))


def _torch_ao(network: Network, root: nn.Module) -> Step:
    quantization = importlib.import_module("torch.ao.quantization")
    small = quantization.quantize_dynamic(copy_sharing_tensors(root), {nn.Linear}, inplace=True)
    return network.call(small)


def _torchao_compiled(network: Network, root: nn.Module) -> Step:
    inductor: Any = importlib.import_module("torch._inductor.config")
    small = by_torchao(root)
    with inductor.patch(freezing=True):
        run = network.call(compile_blocks(network, small))
        with torch.inference_mode():
            run()  # compiles, as long as freezing is on
    return run


def by_torchao(root: nn.Module) -> nn.Module:
    """Return a copy whose linear layers multiply integers by torchao."""
    torchao = importlib.import_module("torchao.quantization")
    config = torchao.Int8DynamicActivationInt8WeightConfig(version=2)
    small = copy_sharing_tensors(root)
    torchao.quantize_(small, config)
    return small


def compile_blocks(network: Network, root: nn.Module, **options: Any) -> nn.Module:
    """Compile the blocks that a network consists of, in place, each once; return the root.

    `options` are those of torch's compiler.
    """
    config: Any = importlib.import_module("torch._dynamo.config")
    blocks = network.blocks_of(root)
    # Frozen weights, and blocks that find their cache by a number of their own, are compiled each.
    limit = max(config.recompile_limit, 8 * len(blocks))
    config.recompile_limit = config.accumulated_recompile_limit = limit
    config.fail_on_recompile_limit_hit = True  # or it would run uncompiled under this name
    config.allow_unspec_int_on_nn_module = True
    for block in blocks:
        block.compile(**options)
    return root


def _by_pocket_tts(root: nn.Module) -> nn.Module:
    """Return what `TTSModel.load_model(quantize=True)` does."""
    quantization = importlib.import_module("pocket_tts.quantization")
    small: Any = copy_sharing_tensors(root)
    quantization.apply_dynamic_int8(small.flow_lm, quantization.RECOMMENDED_CONFIG)
    return small  # type: ignore[no-any-return]


OPENED = "fp32 opened"
"""A network whose upstream form cannot be compressed, in the form that can; not yet compressed."""

COMPILED = ("fp32 compiled", "int8 compiled", "torchao int8 compiled")
"""Those that take minutes to make."""

PEERS: dict[str, Callable[[Network, nn.Module], Step]] = {
    "fp32": lambda network, root: (network.official or network.call)(root),
    OPENED: lambda network, root: network.call(root),
    "fp32 compiled": lambda network, root: network.call(
        compile_blocks(network, copy_sharing_tensors(root))
    ),
    "fp32 plain attention": lambda network, root: _within(
        lambda: sdpa_kernel(SDPBackend.MATH), network.call(root)
    ),
    "int8 compiled": _int8_compiled,
    "bf16 autocast": lambda network, root: _within(
        lambda: torch.autocast("cpu", torch.bfloat16), network.call(root)
    ),
    "torch.ao dynamic": _torch_ao,
    "torchao int8": lambda network, root: network.call(by_torchao(root)),
    "torchao int8 compiled": _torchao_compiled,
    "pocket_tts int8": lambda network, root: network.call(_by_pocket_tts(root)),
}
