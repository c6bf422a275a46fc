"""Make a registered checkpoint one that `mlflow models serve` can answer with.

Beside the adapter come an `MLmodel` that names dopsd's loader, the run's settings, and the digests
of settings, adapter and base. There is no pickle and no copy of code: the server imports the
installed dopsd.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dopsd.core.errors import Code, DopsdError
from dopsd.core.fingerprint import sha256
from dopsd.models import adapter_files
from dopsd.models.checkpoint_files import base_files
from dopsd.tasks.registry import load_task

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

    from dopsd.evaluation.config import EvaluateConfig, SelectConfig
    from dopsd.training.run_settings import RunSettings

LOADER = "dopsd.serving.loader"  # its `_load_pyfunc` makes the model that answers
SETTINGS, SERVED = "params.yaml", "serving.json"
EXAMPLE, SERVING_EXAMPLE = "input_example.json", "serving_input_example.json"


def settings_text(run: RunSettings, evaluate: EvaluateConfig, select: SelectConfig) -> str:
    """Return a params.yaml with the run's settings alone; `dopsd.run_settings` reads it."""
    task, method, seed = run.key.task, run.kind, run.key.seed
    sections: dict[str, Any] = {
        "matrix": {"tasks": [task], "methods": [method], "seeds": [seed]},
        "data": {task: run.data.model_dump(mode="json")},
        "model": run.model.model_dump(mode="json"),
        "sampling": run.sampling.model_dump(mode="json"),
        "method": {method: run.algorithm.model_dump(mode="json")},
        "train": run.train.model_dump(mode="json"),
        "evaluate": evaluate.model_dump(mode="json"),
        "select": select.model_dump(mode="json"),
    }
    return yaml.safe_dump(sections, sort_keys=False)


def served_text(run: RunSettings, folder: Path, settings: str) -> str:
    """Return the digests that the loader checks, as JSON."""
    base = {path.name: sha256(path) for path in base_files(run.model)}
    prompt = Path(run.data.prompt_file) if run.data.prompt_file else None
    files = {str(prompt): sha256(prompt)} if prompt else {}
    content = {"adapter": require_sealed(folder), "base": base, "files": files}
    content["settings"] = {SETTINGS: hashlib.sha256(settings.encode()).hexdigest()}
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def flavour_of(
    run: RunSettings, evaluate: EvaluateConfig, select: SelectConfig, model_id: str
) -> tuple[dict[str, str], str]:
    """Return the files beside the selected adapter by name, and a digest of what they decide."""
    settings = settings_text(run, evaluate, select)
    served = served_text(run, run.key.folder / "best", settings)
    digest = hashlib.sha256((settings + served).encode()).hexdigest()[:16]
    return _files(settings, served, run, model_id), digest


def _files(settings: str, served: str, run: RunSettings, model_id: str) -> dict[str, str]:
    """Return the files; the first test problem is the input example."""
    from mlflow.models import Model
    from mlflow.pyfunc import add_to_model

    model = Model(signature=_signature(), model_id=model_id)
    add_to_model(model, loader_module=LOADER)  # type: ignore[no-untyped-call]  # not annotated
    files = {SETTINGS: settings, SERVED: served}
    with suppress(DopsdError):  # results from DVC's cache may come without the problems
        problem = load_task(run.key.task, run.data).load("test")[0].prompt
        table = {"columns": ["problem"], "data": [[problem]]}
        files |= {
            EXAMPLE: json.dumps(table),
            SERVING_EXAMPLE: json.dumps({"dataframe_split": table}),
        }
        model.saved_input_example_info = {
            "artifact_path": EXAMPLE,
            "serving_input_path": SERVING_EXAMPLE,
            "type": "dataframe",
            "pandas_orient": "split",
        }
    return files | {"MLmodel": model.to_yaml()}


def _signature() -> ModelSignature:
    """Return the columns and parameters of a request, and the columns of an answer."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array, DataType

    return ModelSignature(
        Schema([ColSpec("string", name, required=False) for name in ("problem", "prompt")]),
        Schema(
            [
                ColSpec("string", "text"),
                ColSpec(Array(DataType.string), "trace", required=False),
            ]
        ),
        ParamSchema(
            [
                ParamSpec("temperature", DataType.double, 0.0),
                ParamSpec("seed", DataType.long, 0),
                ParamSpec("trace", DataType.boolean, False),
            ]
        ),
    )


def require_sealed(folder: Path) -> dict[str, str]:
    """Return the SHA-256 digests of a checkpoint's files, which match those of its seal.

    Raises:
        DopsdError: if a file is missing, is damaged or has no digest, or the checkpoint is
            neither all weights nor plain LoRA.
    """
    digests, sealed = adapter_files.read_digests(folder), adapter_files.checkpoint_names(folder)
    if unsealed := [name for name in sealed if name not in digests]:
        raise Code.NO_ADAPTER.error(
            f"{folder}: no digest of {unsealed[0]} in {adapter_files.DIGESTS}; name a checkpoint"
            " that dopsd wrote, such as runs/<task>/<method>/<seed>/best"
        )
    for name in sealed:
        adapter_files.require_digest(folder / name, digests[name])
    adapter_files.shape_of(folder)
    return {name: digests[name] for name in sealed}
