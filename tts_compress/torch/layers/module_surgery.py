"""Changes to a tree of modules: copies that share tensors, and replaced modules.

What hides its layers is replaced by an equal that has them. `nn.MultiheadAttention` keeps its input
projections in one bare parameter and hands it to a function, so replacing linear layers passes it
over, and `nn.TransformerEncoderLayer` has a fast path that reads weights behind its modules' backs.
GPT-2 and its like keep the weights of their linear layers transposed. The Snake activation of
neural codecs is computed in blocks that fit a processor's cache.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import partial, wraps
from types import FunctionType, MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.weight_norm import WeightNorm

from tts_compress.errors import QuantizationError, reason
from tts_compress.torch.layers.base import CompressedLayer
from tts_compress.torch.layers.geometry import computes_as, plain_view

if TYPE_CHECKING:
    from collections.abc import Iterator

_SNAKES = {("dac.nn.layers", "Snake1d"), ("transformers.models.dac.modeling_dac", "Snake1d")}
"""Modules that compute Snake, with a parameter `alpha` `[1, channels, 1]`."""

_TRANSPOSED = ("transformers.pytorch_utils", "Conv1D")
"""The module that multiplies `[..., inputs]` by a weight `[inputs, outputs]`."""

_SUCCESSOR = "_tts_compress_successor"
"""The attribute of a replaced module that is what replaced it."""

_BLOCK = 1 << 16
"""Values of a block: with what is computed from them, they stay in a processor's cache."""

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def copy_sharing_tensors(
    module: ModuleT, copied: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> ModuleT:
    """Return a copy of a tree of modules that shares every tensor with the original.

    Replacing or removing modules and parameters of the copy leaves the original as it is.

    Args:
        module: The root of the tree.
        copied: Returns the tensor that the copy has in place of the original's, once for each.

    Raises:
        QuantizationError: Something that the module holds cannot be copied, or is a function that
            would go on to call the original.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        # Also attributes: the old weight norm keeps a computed weight as one, which cannot be
        # copied while it is part of a graph of gradients.
        attributes = (vars(part), part._parameters, part._buffers)  # noqa: SLF001
        for value in (value for held in attributes for value in held.values()):
            if isinstance(value, Tensor) and id(value) not in memo:
                memo[id(value)] = copied(value)
            elif isinstance(value, threading.local):
                memo[id(value)] = value
    try:
        result = copy.deepcopy(module, memo)
    except (RuntimeError, TypeError) as error:
        raise QuantizationError(
            f"the module cannot be copied ({reason(error)}); take off the attribute that cannot, "
            "such as a lock, a generator or a tensor with gradients in a list"
        ) from error
    originals = set(module.modules())
    for name, part in result.named_modules():
        for attribute, value in vars(part).items():
            if any(getattr(held, "__self__", held) in originals for held in _enclosed(value)):
                raise QuantizationError(
                    f"'{attribute}' of '{name}' ({type(part).__name__}) is a function written "
                    "inside another one, and would call the original of what it is compressed to; "
                    "make it a method of the class"
                )
    return result


def _enclosed(value: Any) -> list[nn.Module | MethodType]:
    """Return the modules and bound methods that a function has from around it."""
    function = getattr(value, "__func__", value)  # of what is bound
    cells = function.__closure__ or () if isinstance(function, FunctionType) else ()
    held = (cell.cell_contents for cell in cells)
    return [each for each in held if isinstance(each, nn.Module | MethodType)]


def copy_with_state(module: ModuleT, *, learns: bool = True) -> ModuleT:
    """Return a copy that shares the values of parameters and the codes of compressed layers only.

    Calling, casting or moving it leaves the original as it is: buffers may be what a module keeps
    between its calls, such as the last samples of a stream, and a cast changes parameters in place.

    Args:
        module: The root of the tree.
        learns: False for a copy none of whose parameters requires gradients.
    """
    compressed = (part for part in module.modules() if isinstance(part, CompressedLayer))
    codes = {id(tensor) for part in compressed for tensor in part.buffers()}

    def own(tensor: Tensor) -> Tensor:
        if id(tensor) in codes or type(tensor) not in {Tensor, nn.Parameter}:
            return tensor
        if not isinstance(tensor, nn.Parameter):
            return tensor.detach().clone()
        can = tensor.requires_grad and not tensor.is_inference()  # torch refuses both
        return nn.Parameter(tensor.detach(), requires_grad=learns and can)

    return copy_sharing_tensors(module, own)


def normalize(root: nn.Module) -> nn.Module:
    """Fold weight norm, and replace what hides its layers by modules of ours; return the root.

    Works in place. The module's outputs stay the same.
    """
    for name, parameter in root.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise QuantizationError(f"'{name}' has no shape yet; call the module once before")
    holder = nn.ModuleList([root])  # the module may itself be one of those
    fold_weight_norm(holder)
    for name, module in list(holder.named_modules()):
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # for a path past its layers, not for ours
        ours = open_attention(module) or replace_snake(module) or replace_transposed(module)
        if ours is not None:
            refuse_hooks(module, name.removeprefix("0."))
            replace_module(holder, name, ours)
    return holder[0]


def refuse_hooks(module: nn.Module, name: str) -> None:
    """Refuse a module that is to be exchanged, and calls functions that the new one would not."""
    if module._forward_hooks or module._forward_pre_hooks:  # noqa: SLF001  there is no other way
        raise QuantizationError(
            f"'{name}' has forward hooks, which its compressed layer would lose; remove them, or "
            "exclude the layer in the recipe"
        )


def fold_weight_norm(root: nn.Module) -> None:
    """Replace weight norm, in both of torch's forms, by the weights it computes, in place."""
    for module in root.modules():
        hooks = module._forward_pre_hooks.items()  # noqa: SLF001  where the old form lives
        for key, hook in list(hooks):
            if isinstance(hook, WeightNorm):
                with torch.no_grad():
                    hook.remove(module)
                del module._forward_pre_hooks[key]  # noqa: SLF001
        if parametrize.is_parametrized(module):
            _fold_parametrizations(module)


def replace_module(root: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """Replace the module of a dotted name, under every name it is held by, in place.

    The new one gets the attributes that the author of the replaced one gave it.

    Returns:
        The root, or the module if it replaces the root itself (an empty name).
    """
    replaced = root.get_submodule(name)
    for key, value in vars(replaced).items():
        if not (key.startswith("_") or hasattr(module, key)):
            vars(module)[key] = value
    if not name:
        return module.train(root.training)
    vars(replaced)[_SUCCESSOR] = module
    for holder in list(root.modules()):
        for leaf, child in list(holder._modules.items()):  # noqa: SLF001  also repeated ones
            if child is replaced:
                setattr(holder, leaf, module.train(holder.training))
    return root


def redirect(root: nn.Module) -> None:
    """Let attributes that hold replaced modules, such as a plain list of layers, hold the new ones.

    Works in place, on lists, deques, dictionaries, tuples, namespaces, bound methods, `partial`.
    What is no child of a module is called all the same, and would compute with weights that no file
    holds.
    """
    for module in root.modules():
        held = vars(module)
        for name, value in held.items():
            held[name] = _redirected(value)


def _redirected(value: Any, levels: int = 8) -> Any:
    """Return a value, in place where it is a container, with successors of replaced modules."""
    if isinstance(value, nn.Module):
        successor = vars(value).get(_SUCCESSOR)
        return value if successor is None else _redirected(successor)
    if not levels:
        return value
    if isinstance(value, MethodType):
        owner = _redirected(value.__self__, levels - 1)
        return value if owner is value.__self__ else getattr(owner, value.__name__)
    if isinstance(value, partial):  # it has no other way to be changed
        changeable: Any = value
        changeable.__setstate__(_redirected(changeable.__reduce__()[2], levels - 1))
    if isinstance(value, SimpleNamespace) or is_dataclass(type(value)):
        _redirected(getattr(value, "__dict__", {}), levels - 1)
    if not isinstance(value, deque | dict | list | tuple):
        return value
    whole: Any = value
    held = whole if isinstance(value, dict) else dict(enumerate(whole))
    parts = {key: _redirected(each, levels - 1) for key, each in held.items()}
    changed = {key: each for key, each in parts.items() if each is not held[key]}
    if changed and isinstance(value, tuple):
        return getattr(value, "_make", tuple)(parts.values())
    for key, each in changed.items():  # some containers refuse to be written to
        whole[key] = each
    return value


def _fold_parametrizations(module: nn.Module) -> None:
    """Give a module with weight norm alone its computed weights, and its class back.

    `parametrize.remove_parametrizations` takes the property that computes a weight from the class,
    which copies share with their original: removing it from one breaks the other.
    """
    parametrizations = module.parametrizations
    assert isinstance(parametrizations, nn.ModuleDict)
    steps = [list(map(type, each.children())) for each in parametrizations.children()]
    if any(kinds != [_WeightNorm] for kinds in steps):
        return
    weights = {name: getattr(module, name).detach() for name in parametrizations}
    del module._modules["parametrizations"]  # noqa: SLF001  its own attribute access is overridden
    module.__class__ = type(module).__bases__[0]
    for name, weight in weights.items():
        module.register_parameter(name, nn.Parameter(weight, requires_grad=False))
    loading = module._load_state_dict_pre_hooks  # noqa: SLF001  weight norm's cannot be pickled
    for key, hook in list(loading.items()):
        if getattr(hook, "hook", hook).__module__ == _WeightNorm.__module__:
            del loading[key]


class OpenAttention(nn.Module):
    """Multi-head attention equal to a `torch.nn.MultiheadAttention`."""

    def __init__(self, closed: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = closed.embed_dim, closed.num_heads
        self.head_dim, self.batch_first = closed.head_dim, closed.batch_first
        self.dropout = closed.dropout
        self._qkv_same_embed_dim = False  # makes nn.TransformerEncoderLayer call this module
        self.in_proj_weight, self.in_proj_bias = None, None  # it asks for them first
        if closed.in_proj_weight is not None:
            weights = closed.in_proj_weight.chunk(3)
        else:
            weights = (closed.q_proj_weight, closed.k_proj_weight, closed.v_proj_weight)
        biases = (None,) * 3 if closed.in_proj_bias is None else closed.in_proj_bias.chunk(3)
        self.q_proj, self.k_proj, self.v_proj = map(_linear, weights, biases)
        self.out_proj = _linear(closed.out_proj.weight, closed.out_proj.bias)

    def forward(  # noqa: PLR0913, PLR0917  the signature of what it replaces
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor | None]:
        """Return output and attention weights, as `torch.nn.MultiheadAttention` does.

        The mask decides; `is_causal` is a hint that one is causal, and needs it to be given.
        """
        if is_single := query.dim() == 2:
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        mask = _join(key_padding_mask, attn_mask, query, self.num_heads)
        output, weights = self._attend((query, key, value), mask, need_weights)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if is_single:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _attend(
        self, inputs: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return output `[batch, time, dim]` and weights `[batch, heads, queries, keys]`."""
        layers = (self.q_proj, self.k_proj, self.v_proj)
        rows = (layer(x) for layer, x in zip(layers, inputs, strict=True))
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in rows)
        weights, dropout = None, self.dropout if self.training else 0.0
        if need_weights:
            scores = q @ k.transpose(-1, -2) * self.head_dim**-0.5
            weights = torch.softmax(scores if mask is None else scores + mask, -1)
            weights = F.dropout(weights, dropout) if dropout else weights
            heads = weights @ v
        else:
            heads = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        return self.out_proj(heads.transpose(1, 2).flatten(2)), weights


def open_attention(module: nn.Module) -> OpenAttention | None:
    """Return the equal of an `nn.MultiheadAttention`; None for any other module.

    Also for one that appends learned keys or zeros (`add_bias_kv`, `add_zero_attn`).
    """
    # A subclass with a forward of its own may do anything.
    if not isinstance(module, nn.MultiheadAttention):
        return None
    if not computes_as(module, nn.MultiheadAttention):
        return None
    appends = module.bias_k is not None or module.add_zero_attn
    return None if appends else OpenAttention(module)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def _join(padding: Tensor | None, mask: Tensor | None, query: Tensor, heads: int) -> Tensor | None:
    """Return one mask that is added to scores `[batch, heads, queries, keys]`."""
    masks = [] if padding is None else [padding[:, None, None, :]]
    if mask is not None:
        masks.append(mask if mask.dim() == 2 else mask.view(-1, heads, *mask.shape[1:]))
    joined: Tensor | None = None
    for part in masks:
        added = part.to(query.dtype)
        if part.dtype == torch.bool:
            added = torch.zeros_like(added).masked_fill(part, float("-inf"))
        joined = added if joined is None else joined + added
    return joined


class BlockedSnake(nn.Module):
    """`x + sin²(αx) / α` for each channel (Ziyin et al., 2020, arXiv 2006.08195), as DAC has it.

    Written as the formula stands, each step walks through memory once more; beside convolutions in
    integers that is a large part of a codec's time.

    Args:
        alpha: `[1, channels, 1]`.
    """

    def __init__(self, alpha: nn.Parameter) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, signal: Tensor) -> Tensor:
        """Return the activation of `[batch, channels, time]`."""
        if torch.is_grad_enabled() or signal.dim() != 3 or signal.is_cuda or not signal.numel():
            return signal + torch.sin(self.alpha * signal).square() / (self.alpha + 1e-9)
        plain = plain_view(signal)
        last = plain is not signal  # channels lie last
        plain = plain.contiguous()
        outputs = torch.empty_like(plain)
        alpha = self.alpha.view((1, -1) if last else (-1, 1)).to(signal.dtype)
        factor = (alpha + 1e-9).reciprocal().expand(plain.shape[1:])
        alpha = alpha.expand(plain.shape[1:])
        rows = max(_BLOCK // plain.shape[2], 1)
        scratch = torch.empty_like(plain[0, :rows])
        for source, target in zip(plain, outputs, strict=True):
            for start in range(0, len(source), rows):
                block = slice(start, start + rows)
                values = source[block]
                sines = scratch[: len(values)]
                torch.mul(values, alpha[block], out=sines)
                sines.sin_().square_()
                torch.addcmul(values, sines, factor[block], out=target[block])
        return outputs.transpose(-1, -2) if last else outputs


def replace_snake(module: nn.Module) -> BlockedSnake | None:
    """Return the equal of a Snake activation of a known package; None for any other module."""
    kind = type(module)
    if (kind.__module__, kind.__name__) not in _SNAKES:
        return None
    return BlockedSnake(module.get_parameter("alpha"))


class TransposedLinear(nn.Linear):
    """A linear layer equal to a `Conv1D` of transformers, with that module's attributes."""

    upstream_names: ClassVar[list[str]] = ["nf", "nx"]

    def __init__(self, upstream: nn.Module) -> None:
        weight, bias = upstream.get_parameter("weight"), upstream.get_parameter("bias")
        super().__init__(weight.shape[0], weight.shape[1], device="meta")
        self.nx, self.nf = weight.shape
        self.weight = nn.Parameter(weight.detach().t(), requires_grad=False)
        self.bias = nn.Parameter(bias.detach(), requires_grad=False)


def replace_transposed(module: nn.Module) -> TransposedLinear | None:
    """Return the equal of a `Conv1D` of transformers; None for any other module."""
    kind = type(module)
    return TransposedLinear(module) if (kind.__module__, kind.__name__) == _TRANSPOSED else None


@contextmanager
def intercepted(module: Any, method: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of a torch module, or a function of another object, in the block.

    Args:
        module: Left as it was, also after an error.
        method: `forward` stands for calls of a torch module itself.
        replacement: Is given the original method, then what it was called with.
    """
    before = vars(module).get(method)
    original = getattr(module, method)

    @wraps(original)  # transformers reads the names of what it may be called with
    def intercept(*arguments: Any, **keywords: Any) -> Any:
        return replacement(original, *arguments, **keywords)

    setattr(module, method, intercept)
    try:
        yield
    finally:
        if before is None:
            delattr(module, method)
        else:
            setattr(module, method, before)
