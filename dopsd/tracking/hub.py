"""Upload files to a model repository of the Hugging Face hub, in one commit.

The token comes from HF_TOKEN or from `hf auth login`, never from an argument. HF_ENDPOINT names
another hub.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.progress import log
from dopsd.tracking.hub_errors import one_line

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.hf_api import ModelInfo

    Operation = CommitOperationAdd | CommitOperationDelete

SUFFIXES = (".safetensors", ".json", ".md", ".html", ".txt")  # nothing that runs code
LOGIN = "set HF_TOKEN, or run `hf auth login`"
MAIN = "main"
# weights of merged models, whose number of shards may change from one push to the next
SHARDS = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")


@dataclass(frozen=True)
class Upload:
    """What goes where.

    Attributes:
        repo: the repository, `user/name`.
        files: file on disk or content, by name in the repository.
        marker: name of the file that every upload of this kind has.
        other_marker: name of the file that only uploads of the other kind have.
        is_private: who may see the repository, if the upload creates it.
        revision: branch; the upload creates it if it is missing.
        message: commit message.
    """

    repo: str
    files: dict[str, Path | bytes]
    marker: str
    other_marker: str
    is_private: bool = True
    revision: str = MAIN
    message: str = ""

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file, by name."""
        return {
            name: len(source) if isinstance(source, bytes) else source.stat().st_size
            for name, source in sorted(self.files.items())
        }


def check_names(repo: str, revision: str) -> None:
    """Refuse names that the hub does not take.

    Args:
        repo: the repository.
        revision: the branch.

    Raises:
        DopsdError: if a name is refused.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # lacks __all__

    try:
        validate_repo_id(repo)
        is_valid = repo.count("/") == 1
    except HFValidationError:
        is_valid = False
    if not is_valid:
        raise DopsdError(
            f"push: {repo}: expected user/name or organization/name, of letters, digits, single"
            " dashes and dots, and _; no .git at the end",
            code=Code.ARGUMENT,
        )
    if not re.fullmatch(r"[\w][\w.-]*(/[\w][\w.-]*)*", revision):
        raise DopsdError(
            f"push: --revision {revision}: expected the name of a branch",
            code=Code.ARGUMENT,
        )


def check_files(upload: Upload) -> None:
    """Refuse files that could run code.

    Raises:
        DopsdError: if a file is refused.
    """
    if refused := [name for name in upload.files if PurePosixPath(name).suffix not in SUFFIXES]:
        raise DopsdError(
            f"push: {refused[0]}: only {', '.join(SUFFIXES)} files are uploaded; move it away",
            code=Code.PUSH_REFUSED,
        )


def require_token() -> None:
    """Refuse to go on without a token of the hub.

    Raises:
        DopsdError: if neither the environment nor the login store has one.
    """
    from huggingface_hub import get_token

    if get_token() is None:
        raise DopsdError(f"push: no token of the Hugging Face hub; {LOGIN}", code=Code.PUSH_REFUSED)


def push(upload: Upload) -> str | None:
    """Upload the files in one commit, and return its address; None if nothing is new.

    Files that the hub has are not sent again, so a repeated push sends what is missing.

    Raises:
        DopsdError: if the hub refuses the upload, or the network fails.
    """
    from huggingface_hub import HfApi

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # "no files have been modified"
    require_token()
    api = HfApi()
    with one_line(upload.repo, api.endpoint):
        api.create_repo(upload.repo, private=upload.is_private, exist_ok=True)
        head = _branch(api, upload)
        commit = api.create_commit(
            upload.repo,
            _operations(upload, head),
            commit_message=upload.message,
            revision=upload.revision,
            parent_commit=head.sha,
        )
    return None if commit.oid == head.sha else str(commit.commit_url)


def _branch(api: HfApi, upload: Upload) -> ModelInfo:
    """Return the head of the upload's branch, which is created if nothing speaks against it."""
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        head = api.model_info(upload.repo, revision=upload.revision)
    except RevisionNotFoundError:
        _require_fitting(upload, api.model_info(upload.repo))  # a new branch begins there
        api.create_branch(upload.repo, branch=upload.revision, exist_ok=True)
        head = api.model_info(upload.repo, revision=upload.revision)
    _require_fitting(upload, head)
    return head


def _require_fitting(upload: Upload, head: ModelInfo) -> None:
    """Refuse a repository that more people see, or that holds the other kind of model."""
    if upload.is_private and not head.private:
        raise DopsdError(
            f"push: {upload.repo} is public; give --public to push there, or name another one",
            code=Code.PUSH_REFUSED,
        )
    names = _names(head)
    if upload.other_marker in names and upload.marker not in names:
        raise DopsdError(
            f"push: {upload.repo} holds {upload.other_marker}, so it is another kind of model;"
            " name another repository",
            code=Code.PUSH_REFUSED,
        )


def _names(head: ModelInfo) -> set[str]:
    return {file.rfilename for file in head.siblings or []}


def _operations(upload: Upload, head: ModelInfo) -> list[Operation]:
    """Return the commit's operations: every file, and the removal of replaced shards."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    obsolete = sorted(n for n in _names(head) - upload.files.keys() if SHARDS.fullmatch(n))
    if obsolete:
        log(f"push: removing replaced weights: {', '.join(obsolete)}")
    additions = [CommitOperationAdd(name, source) for name, source in sorted(upload.files.items())]
    return [*additions, *(CommitOperationDelete(name) for name in obsolete)]
