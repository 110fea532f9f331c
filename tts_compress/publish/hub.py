"""Publish an artifact on a hub, through `huggingface_hub`."""

from pathlib import Path

from tts_compress.artifact import MANIFEST_NAME, read_manifest
from tts_compress.errors import ArtifactError, MissingExtraError, reason
from tts_compress.publish.card import CARD_NAME


def push(directory: Path, repository: str, *, private: bool, message: str) -> str:
    """Publish an artifact and its card as one commit; return its URL.

    The repository is made where there is none. Only files of the artifact are sent. The token is
    the one that `hf auth login` stored, or `HF_TOKEN`; `HF_ENDPOINT` names another hub.

    Args:
        directory: The artifact, with its card.
        repository: `owner/name`.
        private: Make a new repository private.
        message: Of the commit.

    Raises:
        ArtifactError: There is no artifact or no card, it was altered, or the hub refuses.
        MissingExtraError: huggingface_hub is not installed.
    """
    try:
        from huggingface_hub import CommitOperationAdd, HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", "hub") from error
    names = (*read_manifest(directory).files, MANIFEST_NAME, CARD_NAME)
    if not (directory / CARD_NAME).is_file():
        raise ArtifactError(
            f"'{directory}' has no {CARD_NAME}; write one first: tts-compress card '{directory}'"
        )
    api = HfApi(library_name="tts-compress")
    try:
        made = api.create_repo(repository, private=private, exist_ok=True)
        commit = api.create_commit(
            made.repo_id,
            [CommitOperationAdd(name, directory / name) for name in names],
            commit_message=message,
        )
    # OSError: no network, which httpx and requests each have errors of their own for.
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        raise ArtifactError(f"cannot publish '{repository}': {reason(error)}") from error
    return str(commit.commit_url)
