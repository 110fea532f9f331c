"""Publish an artifact on a hub, through `huggingface_hub`."""

from pathlib import Path

from tts_compress.artifact import MANIFEST_NAME, read_manifest
from tts_compress.errors import ArtifactError, MissingExtraError, reason
from tts_compress.publish.card import CARD_NAME


def push(directory: Path, repository: str, *, private: bool, message: str) -> str:
    """Publish an artifact and its card as one commit; return its URL.

    The repository is made where there is none. Only files of the artifact are sent, and no link:
    it may lead to a file of yours that is nobody else's business. The token is the one that
    `hf auth login` stored, or `HF_TOKEN`; `HF_ENDPOINT` names another hub.

    Args:
        directory: The artifact, with its card.
        repository: `owner/name`.
        private: Make a new repository private.
        message: Of the commit.

    Raises:
        ArtifactError: There is no artifact or no card, it was altered or has links, or the hub
            refuses or cannot be reached.
        MissingExtraError: huggingface_hub is not installed.
    """
    try:
        from huggingface_hub import CommitOperationAdd, HfApi
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", "hub") from error
    names = (*read_manifest(directory).files, MANIFEST_NAME, CARD_NAME)
    if not (directory / CARD_NAME).is_file():
        raise ArtifactError(
            f"'{directory}' has no {CARD_NAME}; write one first: tts-compress card '{directory}'"
        )
    root = directory.resolve()
    for name in names:
        if (root / name).resolve() != root / name:
            raise ArtifactError(
                f"'{directory / name}' is a link; only files are published: put a copy in its place"
            )
    api = HfApi(library_name="tts-compress")
    try:
        made = api.create_repo(repository, private=private, exist_ok=True)
        commit = api.create_commit(
            made.repo_id,
            [CommitOperationAdd(name, directory / name) for name in names],
            commit_message=message,
        )
    except Exception as error:  # without a network, that of whichever HTTP client it is built on
        raise ArtifactError(
            f"cannot publish '{repository}': {reason(error)}; check the name, the token (`hf auth "
            "login`) and the network"
        ) from error
    return str(commit.commit_url)
