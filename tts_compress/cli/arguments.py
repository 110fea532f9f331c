"""Options that several commands share."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, TypeVar

from tts_compress.cli.command import Option, path
from tts_compress.errors import ArtifactError, ModelError

if TYPE_CHECKING:
    from tts_compress.models.base import Model

    ModelT = TypeVar("ModelT", bound=Model)

MODEL = "such as demo, voice.onnx, out/demo-int8, f5-tts:DIR; all forms: `tts-compress --help`"
"""Help of an argument that names a model."""


def required_output(form: str, meaning: str) -> Option:
    """Return the option of a command's output, which has to be given."""
    return Option(form, meaning, type=path, required=True)


NEW_ARTIFACT = (
    required_output("--output DIR", "new folder, such as out/NAME-SCHEME"),
    Option("--recipe TOML", "a recipe of your own (the family's)"),
)
CHECKOUT = Option(
    "--checkout DIR", "your clone of GPT-SoVITS or Amphion, for models of these systems", type=path
)
PROMPT = (
    Option("--reference WAV", "a recording to speak like", type=path),
    Option("--reference-text TEXT", "transcript of it"),
    Option("--description TEXT", "how to speak, in words"),
    CHECKOUT,
)


def check_unused(options: Namespace, file: str, kind: str, remark: str = "") -> None:
    """Check that the output holds no such file yet, or that it may be replaced."""
    if (options.output / file).exists() and not options.force:
        raise ArtifactError(
            f"'{options.output}' has a {kind}; use --force to replace it{remark}, or another output"
        )


def prompted(model: ModelT, options: Namespace) -> ModelT:
    """Return a model with the prompt that was given on the command line, if one was."""
    from tts_compress.models.base import Prompt, Speaking, TTSModel

    audio, text = options.reference, options.reference_text
    prompt = Prompt(audio=audio, text=text, description=options.description)
    if prompt == Prompt():
        return model
    if not isinstance(model, TTSModel) or model.speaking.prompt is None:
        raise ModelError(f"'{model.spec}' speaks by no prompt; leave reference and description out")
    return model.speaking_as(Speaking(prompt=prompt))
