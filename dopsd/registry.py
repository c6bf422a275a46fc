"""Checkpoints in MLflow: LoggedModels found again by their digest, and versions of a registered model with their card."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

DIGEST_TAG = "dopsd.digest"
CARD = "README.md"


@dataclass(frozen=True)
class Chosen:
    """A selected checkpoint on its way into the registry: its run, its LoggedModel, and what is said of it."""

    run_id: str
    model_id: str
    tags: dict[str, str]
    card: str


def log_model(client: MlflowClient, experiment: str, run_id: str, name: str, folder: Path, digest: str) -> str:
    """A checkpoint folder as a LoggedModel of its run; its id."""
    tags = {DIGEST_TAG: digest, "update": folder.name[5:]}
    model = client.create_logged_model(experiment, name, run_id, tags, model_type="lora")
    client.log_model_artifacts(model.model_id, str(folder))
    client.finalize_logged_model(model.model_id, "READY")
    return model.model_id


def register(client: MlflowClient, uri: str, name: str, chosen: Chosen) -> int:
    """The version of the registered model that this checkpoint is, made if there is none; its number."""
    import mlflow

    if all(m.name != name for m in client.search_registered_models(f"name = '{name}'")):
        client.create_registered_model(name)
    for version in client.search_model_versions(f"name = '{name}'"):
        is_same = version.tags.get(DIGEST_TAG) == chosen.tags[DIGEST_TAG] and version.run_id in (None, "", chosen.run_id)
        if is_same:
            return int(version.version)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / CARD
        path.write_text(chosen.card)
        client.log_model_artifact(chosen.model_id, str(path))
    mlflow.set_tracking_uri(uri)
    number = mlflow.register_model(f"models:/{chosen.model_id}", name, tags=chosen.tags).version
    client.update_model_version(name, number, description=chosen.card.partition("---\n\n")[2])
    return int(number)
