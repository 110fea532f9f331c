"""The supported systems; a new one that runs in torch is a line of `TORCH_FAMILIES`.

Nothing is imported here: the functions and constants are named, and found when a model is opened.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FAMILIES", "MODEL_SPECS", "TORCH_FAMILIES", "TorchFamily"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFamily:
    """A system whose own code speaks in torch."""

    name: str
    """Stands before a colon in specs, and in recipes and manifests."""

    package: str
    """Of this project: the one that has the function below."""

    opener: str
    """Its function that opens a model, given what stands after the colon, the spec, and the
    manifest of an artifact, where that was read already."""

    location: str
    """What stands after the colon, for people."""

    heavy: str
    """Name, below `root()`, of the module whose blocks take most of the time."""

    upstream: str | None = None
    """The `Upstream` constant in its `upstream.py`, for a system that runs from a clone."""


TORCH_FAMILIES = {
    family.name: family
    for family in (
        TorchFamily(
            name="f5-tts",
            package="tts_compress.models.f5",
            opener="open_f5",
            location="a directory or a hub's name",
            heavy="transformer",
        ),
        TorchFamily(
            name="parler-tts",
            package="tts_compress.models.parler",
            opener="open_parler",
            location="a directory or a hub's name",
            heavy="decoder",
        ),
        TorchFamily(
            name="gpt-sovits",
            package="tts_compress.models.gpt_sovits",
            opener="open_gpt_sovits",
            location="CONFIG.yaml or T2S.ckpt,SOVITS.pth",
            heavy="t2s",
            upstream="GPT_SOVITS",
        ),
        TorchFamily(
            name="naturalspeech2",
            package="tts_compress.models.naturalspeech2",
            opener="open_naturalspeech2",
            location="a checkpoint's directory",
            heavy="diffusion",
            upstream="AMPHION",
        ),
    )
}
"""By name."""

FAMILIES = ("piper", *TORCH_FAMILIES, "onnx", "module")
"""`onnx` is a bare graph and `module` a bare torch module, which no spec names."""

MODEL_SPECS = (
    "'demo', a Piper voice's .onnx, a Piper training .ckpt, an artifact's directory, "
    + ", ".join(f"'{family.name}:' and {family.location}" for family in TORCH_FAMILIES.values())
)
"""What names a model that speaks, for people."""
