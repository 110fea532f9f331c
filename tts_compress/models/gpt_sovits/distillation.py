"""What each component of a compressed model can learn from the original."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.models.distillation import Objective

if TYPE_CHECKING:
    from tts_compress.models.gpt_sovits.settings import GptSovitsSettings

__all__ = ["find_objectives"]

_BEFORE_LAST = 3
"""The layer whose output the synthesizer hears of the text encoder, counted from its end."""


def find_objectives(settings: GptSovitsSettings) -> tuple[Objective, ...]:
    """Return what there is to imitate in a model of these settings, in the order data flows.

    Only what runs when a text is spoken: what hears the recording, `hubert` and `vits.ref_enc`, is
    called when a prompt is set, and nothing of the codebook is trained.
    """
    return (_bert(settings), *_HEARING, _T2S, *_synthesizer(settings))


_HEARING = (
    Objective(component="hubert", module="hubert", loss="mse", outputs=(0,)),
    Objective(component="vits", module="vits.ref_enc", loss="mse"),
)

# The decoder scores whole utterances when it is called; step by step its methods are.
_T2S = Objective(component="t2s", module="t2s", loss="kl")

# It returns what it works on, mean and log deviation of the prior, and masks.
_PRIOR = Objective(
    component="vits", module="vits.enc_p", loss="mse", outputs=(1, 2), log_deviation=1
)


def _bert(settings: GptSovitsSettings) -> Objective:
    """Return the objective of the text encoder.

    Its answer is scores and then the states before, between and behind its layers.
    """
    states = int(settings.bert.get("num_hidden_layers", 0)) + 1
    heard = max(1 + states - _BEFORE_LAST, 0)
    return Objective(component="bert", module="bert", loss="mse", outputs=(heard,))


def _synthesizer(settings: GptSovitsSettings) -> tuple[Objective, ...]:
    if not settings.has_vocoder:
        return (
            _PRIOR,
            Objective(component="vits", module="vits.flow", loss="mse"),
            Objective(component="vits", module="vits.dec", loss="waveform"),
        )
    # These return what a next call needs, behind what counts.
    first = (0,)
    return (
        Objective(component="vits", module="vits.enc_p", loss="mse", outputs=first),
        Objective(component="vits", module="vits.wns1", loss="mse", outputs=first),
        Objective(component="vits", module="vits.cfm.estimator", loss="mse", outputs=first),
        Objective(component="vocoder", module="vocoder", loss="waveform"),
    )
