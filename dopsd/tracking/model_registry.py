"""Checkpoints in MLflow: logged models, versions of the registered model, and the champion."""

from __future__ import annotations

import io
import tempfile
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from dopsd.core.files import link_copy
from dopsd.core.progress import log
from dopsd.models.adapter_files import has_all_weights

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

DIGEST_TAG = "dopsd.digest"  # of the weights
ACCURACY = "accuracy"  # tag: accuracy on the selection split
FLAVOUR_TAG = "dopsd.flavour"  # digest of what the model server checks
JUDGED_BY = "judged_by"  # tag: hash of the problems and the protocol of that accuracy
CHAMPION = "champion"  # alias of the best version
CARD = "README.md"


@dataclass(frozen=True)
class Chosen:
    """A selected checkpoint to register."""

    run_id: str  # its MLflow run
    model_id: str  # its LoggedModel
    tags: dict[str, str]
    card: str  # Markdown
    flavour: dict[str, str]  # files that let MLflow serve it, by name

    @property
    def text(self) -> str:
        """The card without its YAML header."""
        return self.card.partition("---\n\n")[2]


def log_model(
    client: MlflowClient, experiment: str, run_id: str, name: str, folder: Path, digest: str
) -> str:
    """Log a checkpoint folder as a LoggedModel of its run, and return the model's id."""
    tags = {DIGEST_TAG: digest, "update": name.rpartition("-")[2]}
    kind = "all weights" if has_all_weights(folder) else "lora"
    model = client.create_logged_model(experiment, name, run_id, tags, model_type=kind)
    client.log_model_artifacts(model.model_id, str(folder))
    client.finalize_logged_model(model.model_id, "READY")
    place = urlsplit(model.artifact_location)
    if place.scheme in ("", "file"):  # this disk: a link takes no space
        for path in folder.iterdir():
            link_copy(path, Path(unquote(place.path)) / path.name)
    return model.model_id


def register(client: MlflowClient, uri: str, name: str, chosen: Chosen) -> int:
    """Register a checkpoint, and return its version number.

    A checkpoint that is already registered keeps its version; tags and card are updated.
    """
    import mlflow

    if all(m.name != name for m in client.search_registered_models(f"name = '{name}'")):
        client.create_registered_model(name)
    for version in client.search_model_versions(f"name = '{name}'"):
        is_same = version.tags.get(DIGEST_TAG) == chosen.tags[DIGEST_TAG] and version.run_id in (
            None,
            "",
            chosen.run_id,
        )
        if is_same:
            _refresh(client, version, chosen)
            return int(version.version)
    _log_files(client, chosen.model_id, {CARD: chosen.card} | chosen.flavour)
    mlflow.set_tracking_uri(uri)
    with redirect_stderr(io.StringIO()):  # of lines on models that exist already
        number = mlflow.register_model(f"models:/{chosen.model_id}", name, tags=chosen.tags).version
    client.update_model_version(name, number, description=chosen.text)
    return int(number)


def _log_files(client: MlflowClient, model_id: str, files: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        client.log_model_artifacts(model_id, folder)


def _refresh(client: MlflowClient, version: ModelVersion, chosen: Chosen) -> None:
    """Update the card and the tags of a version that was evaluated again."""
    if version.description != chosen.text:
        _log_files(client, chosen.model_id, {CARD: chosen.card})
        client.update_model_version(version.name, version.version, description=chosen.text)
    if version.tags.get(FLAVOUR_TAG) != chosen.tags[FLAVOUR_TAG]:
        _log_files(client, chosen.model_id, chosen.flavour)
    for key, value in chosen.tags.items():
        if version.tags.get(key) != value:
            client.set_model_version_tag(version.name, version.version, key, value)


def promote_champion(client: MlflowClient, name: str, number: int) -> int:
    """Make a version the champion unless the current one is at least as good.

    Accuracies count only if both come from the same problems and protocol.
    """
    champion = client.get_registered_model(name).aliases.get(CHAMPION)
    if champion and int(champion) != number:
        new_tags, champion_tags = (
            client.get_model_version(name, str(version)).tags for version in (number, champion)
        )
        if new_tags[JUDGED_BY] == champion_tags.get(JUDGED_BY) and float(
            champion_tags[ACCURACY]
        ) >= float(new_tags[ACCURACY]):
            accuracies = (
                f"{100 * float(champion_tags[ACCURACY]):.1f}%, version {number}"
                f" {100 * float(new_tags[ACCURACY]):.1f}%"
            )
            log(
                f"publish: the champion of {name} is still version {champion}: {accuracies} on the"
                " selection split"
            )
            return int(champion)
    client.set_registered_model_alias(name, CHAMPION, str(number))
    return number
