"""The parts of a GPT-SoVITS model."""

from __future__ import annotations

__all__ = ["NAMED_CALLS", "ROLES"]

ROLES = {
    "bert": "text encoder (Chinese)",
    "hubert": "speech encoder (recording)",
    "vits.ssl_proj": "projection of the recording to tokens",
    "t2s": "speech language model",
    "sv": "speaker encoder",
    "vits.ref_enc": "style encoder",
    "vits.sv_emb": "projection of the speaker",
    "vits.ge_to512": "projection of the style",
    "vits.enc_p": "prior encoder",
    "vits.flow": "flow",
    "vits.dec": "decoder",
    "vits.bridge": "projection of the prior",
    "vits.wns1": "condition encoder",
    "vits.cfm": "diffusion estimator",
    "vocoder": "vocoder",
}
"""In the order data flows; which there are depends on the version."""

NAMED_CALLS = {
    "t2s": ("t2s.infer_panel_batch_infer", "t2s.infer_panel_naive_batched"),
    "vits.cfm": ("vits.cfm.inference",),
    "sv": ("sv.forward3",),
}
"""Methods that upstream calls on components, by component."""
