"""Recording what a system's components are called with while it speaks, and repeating the calls."""

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from tts_compress.errors import ModelError, TTSCompressError
from tts_compress.models.base import Prompt, Prompted, TorchModel
from tts_compress.models.distillation import Call, Objective
from tts_compress.models.interception import intercepted
from tts_compress.models.language_model import LanguageModel
from tts_compress.progress import Progress
from tts_compress.torch.layers.module_surgery import copy_sharing_tensors

Pairs = Sequence[tuple[Objective, "CallRecorder"]]


def record_objectives(
    model: TorchModel,
    objectives: Sequence[Objective],
    texts: Sequence[tuple[str, int]],
    *,
    most: int,
    progress: Progress,
) -> list[list[Call]]:
    """Return the calls of each objective while a model speaks; none of what it never called.

    A language model's scores are recorded while it reads its own tokens again, and encoders of
    descriptions while it does so again with the text as description.

    Args:
        model: The teacher; not modified.
        objectives: Objectives whose calls are recorded, all in one go.
        texts: Texts to speak, each with the seed of its noise.
        most: Largest number of calls kept per objective; of more, a sample is kept.
        progress: Receives a report of every text.

    Raises:
        ModelError: There is no such module, an objective is about scores of a model that has
            none, or the model cannot speak.
        TextError: A text cannot be spoken.
    """
    recorders = [CallRecorder(most=most) for _ in objectives]
    pairs = list(zip(objectives, recorders, strict=True))
    root = copy_sharing_tensors(model.root())
    speaker = model.with_root(root, None)
    for done, (text, seed) in enumerate(texts):
        progress.advance("record", done, len(texts))
        _record_text(speaker, root, pairs, text, seed)
    progress.advance("record", len(texts), len(texts))
    return [recorder.calls for recorder in recorders]


def _record_text(model: TorchModel, root: nn.Module, pairs: Pairs, text: str, seed: int) -> None:
    """Make every call that a text causes."""
    describing = [pair for pair in pairs if pair[0].encodes == "description"]
    others = [pair for pair in pairs if pair[0].encodes == "text"]
    scoring = [pair for pair in others if pair[0].loss == "kl"]
    speaking = [pair for pair in others if pair[0].loss != "kl"]
    if not scoring and not describing:
        with _recording(root, speaking):
            model.synthesize(text, seed=seed)
        return
    if not isinstance(model, LanguageModel):
        raise ModelError(
            f"'{(scoring or describing)[0][0].module}' is recorded while tokens are read, but "
            f"models of family {model.family!r} have none"
        )
    with _recording(root, speaking):
        tokens = model.generate_tokens(text, seed=seed)
    with _recording(root, scoring):
        model.logits(text, tokens)
    if describing and isinstance(model, Prompted):
        described = model.with_prompt(Prompt(description=text))
        assert isinstance(described, LanguageModel)
        with _recording(root, describing):
            described.logits(text, tokens)


@contextmanager
def _recording(root: nn.Module, pairs: Pairs) -> Iterator[None]:
    with ExitStack() as stack:
        for objective, recorder in pairs:
            stack.enter_context(recorder.recording(root, objective))
        yield


class CallRecorder:
    """Keeps a uniform sample of the calls of a module, without knowing how many will come.

    The first ones would be the first steps of a loop and the first texts.

    Args:
        most: Largest number of calls that are kept.
        seed: Chooses the sample.

    Raises:
        TTSCompressError: `most` is not positive.
    """

    def __init__(self, *, most: int, seed: int = 0) -> None:
        if most < 1:
            raise TTSCompressError(f"{most} calls cannot be recorded; give 1 or more")
        self._kept: list[tuple[int, Call]] = []
        self._most = most
        self._seen = 0
        self._random = random.Random(seed)  # noqa: S311  no secret

    @property
    def calls(self) -> list[Call]:
        """The calls that were kept, in order."""
        return [call for _, call in sorted(self._kept, key=lambda kept: kept[0])]

    @contextmanager
    def recording(self, root: nn.Module, objective: Objective) -> Iterator[None]:
        """Record an objective's calls in the block; it may be entered again for more.

        Args:
            root: The module the objective's names are below; restored, also after an error.
            objective: Names the module and its method.

        Raises:
            ModelError: There is no such module or method.
        """
        with intercepted(_module_of(root, objective), objective.method, self):
            yield

    def __call__(self, method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Make a call, and keep it or not."""
        index, self._seen = self._seen, self._seen + 1
        place = index if index < self._most else self._random.randrange(self._seen)
        if place >= self._most:
            return method(*arguments, **keywords)
        before = tree_map(_copy, (arguments, keywords))  # a module may change its inputs
        output = method(*arguments, **keywords)
        call = Call(arguments=before[0], keywords=before[1], output=tree_map(_copy, output))
        self._kept[place : place + 1] = [(index, call)]
        return output


def repeatable(module: nn.Module, objective: Objective) -> Callable[..., Any]:
    """Return the method that repeats an objective's calls.

    Some systems put their methods into `torch.inference_mode`, which no gradient leaves; here
    methods are called without their decorators.

    Args:
        module: The one that the objective names, or a copy of it.
        objective: Names the method, and keywords that are not as they were recorded.
    """
    method: Any = module
    if objective.method != "forward":
        method = getattr(module, objective.method)
        undecorated = inspect.unwrap(method)
        if undecorated is not method:
            method = MethodType(undecorated, module)
    changed = dict(objective.repeated)
    return lambda *arguments, **keywords: method(*arguments, **keywords | changed)


def compared_outputs(
    objective: Objective, output: Any, keywords: Mapping[str, Any] | None = None
) -> list[Tensor]:
    """Return the tensors of an output that count, in order.

    Args:
        objective: Names them.
        output: The output of the module.
        keywords: Keywords of the call, which determine how many steps count; None for all.

    Raises:
        ModelError: The output has no such tensors.
    """
    leaves, _ = tree_flatten(output)
    found = [x for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]
    positions = objective.outputs or range(len(found))
    if not found or max(positions) >= len(found):
        raise ModelError(
            f"'{objective.module}.{objective.method}' returned {len(found)} floating-point "
            f"tensors and the objective compares {list(positions) or 'at least one'}"
        )
    if keywords is None or objective.steps_of is None:
        return [found[position] for position in positions]
    steps = keywords[objective.steps_of].shape[-1]
    return [found[position][..., -steps:, :] for position in positions]


def _module_of(root: nn.Module, objective: Objective) -> nn.Module:
    try:
        module = root.get_submodule(objective.module)
    except AttributeError as error:
        raise ModelError(f"the model has no module '{objective.module}': {error}") from error
    if not callable(getattr(module, objective.method, None)):
        kind = type(module).__name__
        raise ModelError(f"'{objective.module}' is a {kind} without a method {objective.method!r}")
    return module


def _copy(value: Any) -> Any:
    """Return a detached copy of a tensor on the processor; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    with torch.inference_mode(mode=False):  # tensors made in inference mode never get gradients
        return value.detach().to("cpu", copy=True)
