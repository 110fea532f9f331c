"""Step 3, ``train``: teach the voice.  Resumable; the schedule counts steps, never time.

A third of every batch goes the way of VITS (posterior -> decoder, and the KL term that makes
the prior's sigma real); the rest goes the way the voice is used later
(prior with some noise -> inverse flow -> decoder).  Both must reconstruct the teacher.
In the last part small discriminators join in.
"""

from __future__ import annotations

import math
import multiprocessing
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn

from .batches import Batch, cut, draw_batch, expand, load_aligned
from .features import Clip, log_mel
from .losses import (
    feature_loss,
    fool_loss,
    judge_loss,
    kl_loss,
    masked_l1,
    mel_loss,
    stft_loss,
)
from .model import Discriminators, Helpers, VoiceConfig, build_voice, decode

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Plan:
    """Everything that decides how the training runs."""

    steps: int = 8000
    adversarial_from: float = 0.5
    batch: int = 12
    peak_rate: float = 1.5e-3
    last_rate: float = 0.1
    judge_rate: float = 3e-4
    warmup: int = 100
    max_noise: float = 0.6
    ema: float = 0.998
    duration_every: int = 2
    focus_from: float = 1.0
    exact_from: float = 0.95
    save_every: int = 50
    seed: int = 0
    workers: int = 2
    start: Path | None = None

    def posterior(self, size: int, step: int) -> int:
        """Return the number of utterances of a batch of ``size`` that go the posterior's way."""
        return size // 3 if step < self.focus_from * self.steps else 0


@dataclass
class State:
    """All that a checkpoint holds."""

    voice: Any
    helpers: Helpers
    judges: Discriminators
    optimizer: torch.optim.AdamW
    judge_optimizer: torch.optim.AdamW
    average: dict[str, Tensor]
    step: int = 0
    cpu_seconds: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)


def new_state(plan: Plan) -> State:
    """Return the untrained state."""
    torch.manual_seed(plan.seed)
    config = VoiceConfig()
    voice, helpers, judges = build_voice(config), Helpers(config), Discriminators()
    weights = [*voice.parameters(), *helpers.parameters()]
    return State(
        voice=voice,
        helpers=helpers,
        judges=judges,
        optimizer=torch.optim.AdamW(weights, betas=(0.8, 0.99), weight_decay=0.01),
        judge_optimizer=torch.optim.AdamW(judges.parameters(), betas=(0.8, 0.99)),
        average={k: v.detach().clone() for k, v in voice.state_dict().items()},
    )


def start_from(state: State, voice: Path) -> None:
    """Take over the weights of an exported voice; what is not exported stays untrained.

    Missing are the posterior encoder, the discriminators and the training-only half of the
    duration predictor, so this is for plans that train the prior's way alone.
    """
    import onnx
    from onnx.numpy_helper import to_array

    prefix = "voice."
    weights = {
        tensor.name.removeprefix(prefix): torch.from_numpy(to_array(tensor).copy())
        for tensor in onnx.load(voice).graph.initializer
        if tensor.name.startswith(prefix)
    }
    for name, module in state.voice.named_modules():
        if f"{name}.weight" in weights and hasattr(module, "weight_g"):
            weight = weights.pop(f"{name}.weight")
            weights[f"{name}.weight_v"] = weight
            weights[f"{name}.weight_g"] = weight.flatten(1).norm(dim=1).view(-1, 1, 1)
    unknown = state.voice.load_state_dict(weights, strict=False).unexpected_keys
    if unknown:
        raise ValueError(f"{voice} is no voice of this recipe: it has {', '.join(unknown[:3])}")
    state.average = {k: v.detach().clone() for k, v in state.voice.state_dict().items()}


def save(state: State, path: Path) -> None:
    """Write a checkpoint atomically."""
    part = path.with_suffix(".part")
    torch.save(
        {
            "voice": state.voice.state_dict(),
            "helpers": state.helpers.state_dict(),
            "judges": state.judges.state_dict(),
            "optimizer": state.optimizer.state_dict(),
            "judge_optimizer": state.judge_optimizer.state_dict(),
            "average": state.average,
            "step": state.step,
            "cpu_seconds": state.cpu_seconds,
        },
        part,
    )
    part.replace(path)


def resume(state: State, path: Path) -> None:
    """Continue from a checkpoint."""
    saved = torch.load(path, weights_only=True)
    for name in ("voice", "helpers", "judges", "optimizer", "judge_optimizer"):
        getattr(state, name).load_state_dict(saved[name])
    state.average = saved["average"]
    state.step, state.cpu_seconds = saved["step"], saved["cpu_seconds"]


def rate_factor(step: int, plan: Plan) -> float:
    """Warm-up, then a cosine down to ``last_rate``."""
    done = min(1.0, step / plan.steps)
    cosine = 0.5 * (1 + math.cos(math.pi * done))
    return min(1.0, (step + 1) / plan.warmup) * (cosine * (1 - plan.last_rate) + plan.last_rate)


def latents(state: State, batch: Batch, plan: Plan) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the decoder's input for every utterance and the losses before the decoder.

    The first third of the batch comes from the posterior, the rest from the prior.
    ``-> z [b, c, W], losses``.
    """
    hidden, mean_p, log_p, id_mask = state.voice.enc_p(batch.ids, batch.id_lengths)
    losses = {}
    if state.step % plan.duration_every == 0:
        nll = state.voice.dp(hidden.detach(), id_mask, batch.durations).sum()
        losses["duration"] = nll / id_mask.sum()
    mean, log_std = expand(mean_p, batch.owner), expand(log_p, batch.owner).clamp(-6, 2)
    first = plan.posterior(len(batch.ids), state.step)
    mask_q, mask_p = batch.mask[:first], batch.mask[first:]
    z_q = mean[:0]
    if first > 0:
        log_spec = batch.spec[:first].clamp_min(1e-4).log() / 4 + 1
        z_q, _, log_q = state.helpers.posterior(log_spec, mask_q[:, 0].sum(1).long())
        z_flowed = state.voice.flow(z_q, mask_q)
        losses["kl"] = kl_loss(z_flowed, log_q, mean[:first], log_std[:first], mask_q)
    noise = torch.rand(len(batch.ids) - first, 1, 1) * plan.max_noise
    spread = torch.randn_like(mean[first:]) * log_std[first:].detach().exp() * noise
    z_p = state.voice.flow(mean[first:] + spread, mask_p, reverse=True)
    z = torch.cat([z_q, z_p]) * batch.mask
    losses["head"] = masked_l1(state.helpers.mel_head(z), log_mel(batch.spec), batch.mask)
    return z, losses


def weights_of(step: int, plan: Plan) -> dict[str, float]:
    """Return the weight of every loss at this step."""
    done = step / plan.steps
    adversarial = done >= plan.adversarial_from
    return {
        "head": 1.0 if adversarial else 10.0 * max(0.1, 1 - done / plan.adversarial_from),
        "kl": min(1.0, 0.1 + done / 0.15),
        "duration": 1.0,
        "mel_q": 6.0,
        "mel_p": 24.0,
        "stft": 2.5 if adversarial else 5.0,
        "fool": 2.0 if adversarial else 0.0,
        "features": 4.0 if adversarial else 0.0,
    }


def _rates(state: State, plan: Plan) -> None:
    factor = rate_factor(state.step, plan)
    for group in state.optimizer.param_groups:
        group["lr"] = plan.peak_rate * factor
    for group in state.judge_optimizer.param_groups:
        group["lr"] = plan.judge_rate


def adversarial(state: State, real: Tensor, fake: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Let the judges listen once. ``[b, n], [b, n] -> their own loss, the voice's losses``."""
    maps_real, maps_fake = state.judges(real), state.judges(fake)
    losses = {"fool": fool_loss(maps_fake), "features": feature_loss(maps_real, maps_fake)}
    return judge_loss(maps_real, maps_fake), losses


def one_step(state: State, batch: Batch, plan: Plan) -> dict[str, float]:
    """Do one step of everything and return the losses."""
    _rates(state, plan)
    weights = weights_of(state.step, plan)
    z, losses = latents(state, batch, plan)
    short = state.step < plan.exact_from * plan.steps
    fake = decode(state.voice.dec, cut(z, batch.offset), short)
    first = plan.posterior(len(fake), state.step)
    if first > 0:
        losses["mel_q"] = mel_loss(batch.audio[:first], fake[:first])
    losses["mel_p"] = mel_loss(batch.audio[first:], fake[first:])
    losses["stft"] = stft_loss(batch.audio, fake)
    state.optimizer.zero_grad()
    state.judge_optimizer.zero_grad()
    judge = torch.zeros(())
    if weights["fool"] > 0:
        judge, more = adversarial(state, batch.audio, fake)
        losses |= more
        # one forward pass serves both sides: each loss reaches only its own weights
        torch.autograd.backward(judge, inputs=[*state.judges.parameters()], retain_graph=True)
    total = torch.stack([weights[name] * value for name, value in losses.items()]).sum()
    trained = [*state.voice.parameters(), *state.helpers.parameters()]
    torch.autograd.backward(total, inputs=trained)
    share_gradients([*trained, *state.judges.parameters()])
    if torch.isfinite(nn.utils.clip_grad_norm_(trained, 5.0)):
        state.optimizer.step()
        state.judge_optimizer.step()
    _update_average(state, plan)
    shown = losses | ({"judge": judge} if weights["fool"] > 0 else {})
    return {name: value.item() for name, value in shown.items()}


@torch.no_grad()
def _update_average(state: State, plan: Plan) -> None:
    """Exponential moving average of the voice; short while the voice is young."""
    keep = min(plan.ema, (1 + state.step) / (10 + state.step))
    for name, value in state.voice.state_dict().items():
        if value.is_floating_point():
            state.average[name].lerp_(value, 1 - keep)


def _report(state: State, started: float, every: int) -> None:
    shown = "  ".join(f"{k} {v / every:.3f}" for k, v in state.sums.items())
    wall = time.monotonic() - started
    print(f"{state.step}  cpu {state.cpu_seconds:.0f} s  wall {wall:.0f} s  {shown}", flush=True)
    state.sums.clear()


def share_gradients(weights: list[nn.Parameter]) -> None:
    """Average the gradients over all workers (all of them have gradients for the same)."""
    if not distributed.is_initialized():
        return
    gradients = [w.grad for w in weights if w.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    start = 0
    for gradient in gradients:
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
        start += gradient.numel()


def seeded(plan: Plan, rank: int, step: int) -> random.Random:
    """Seed torch for one step of one worker and return a generator for everything else.

    With a seed per step nothing random has to be kept in the checkpoint.
    """
    rng = random.Random(f"{plan.seed} {rank} {step}")  # noqa: S311 - not cryptography
    torch.manual_seed(rng.getrandbits(48))
    return rng


def work_on(work: Path, plan: Plan, rank: int) -> None:
    """Train as one worker; the first one reports and saves."""
    torch.set_num_threads(1)
    if plan.workers > 1:
        meeting = (work / "meeting").absolute().as_uri()
        distributed.init_process_group(
            "gloo", init_method=meeting, rank=rank, world_size=plan.workers
        )
    path = work / "checkpoint.pt"
    state = new_state(plan)
    if path.exists():
        resume(state, path)
    elif plan.start:
        start_from(state, plan.start)
    clips: list[Clip] = load_aligned(work)
    started, every = time.monotonic(), 50
    print(f"{len(clips)} clips, worker {rank}, from step {state.step} to {plan.steps}", flush=True)
    while state.step < plan.steps:
        cpu = time.process_time()
        batch = draw_batch(clips, plan.batch // plan.workers, seeded(plan, rank, state.step))
        for name, value in one_step(state, batch, plan).items():
            times = plan.duration_every if name == "duration" else 1
            state.sums[name] = state.sums.get(name, 0.0) + value * times
        state.step += 1
        state.cpu_seconds += (time.process_time() - cpu) * plan.workers
        if rank == 0 and state.step % every == 0:
            _report(state, started, every)
        if rank == 0 and (state.step % plan.save_every == 0 or state.step == plan.steps):
            save(state, path)


def train(work: Path, plan: Plan) -> None:
    """Train until ``plan.steps``; continue from ``WORK/checkpoint.pt`` if there is one.

    Several workers of one thread each get more out of a busy machine than several threads.
    """
    (work / "meeting").unlink(missing_ok=True)
    spawn = multiprocessing.get_context("spawn")
    others = [
        spawn.Process(target=work_on, args=(work, plan, rank), daemon=True)
        for rank in range(1, plan.workers)
    ]
    for other in others:
        other.start()
    work_on(work, plan, 0)
    for other in others:
        other.join()
