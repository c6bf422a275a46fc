"""What the forms of the flows offer: choices, and the schema of keys that a run may override."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import WithJsonSchema

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.config import profiles
from dopsd.config.loading import read_yaml
from dopsd.config.params import Params
from dopsd.config.profiles import AS_IT_STANDS
from dopsd.config.tasks import own_tasks
from dopsd.core.errors import DopsdError
from dopsd.tasks.registry import TASKS

PARAMS = Path("params.yaml")
ANY_NAME = r"[^.]+"
Schema = dict[str, Any]


def own_task_names() -> list[str]:
    """Return the names of the tasks that params.yaml defines; none if it cannot be read."""
    with suppress(DopsdError, OSError):
        return sorted(own_tasks(read_yaml(PARAMS)))
    return []


if TYPE_CHECKING:
    Profile: TypeAlias = str
    Task: TypeAlias = str
    Method: TypeAlias = str
    Preset: TypeAlias = str
    Hardware: TypeAlias = str
else:  # the registered names, which Prefect's forms offer as choices
    Profile = Literal[(*profiles.names(), AS_IT_STANDS)]
    Task = Literal[(*TASKS.names, *own_task_names())]
    Method = Literal[tuple(ALGORITHMS.names)]
    Preset = Literal[tuple(profiles.presets())]
    Hardware = Literal[tuple(profiles.hardware())]
OtherCode = Literal["stop", "continue", "anew"]


def overrides_schema() -> Schema:
    """Return the schema of `{"train.updates": 5, ...}`: every key of Params with its values.

    The keys are in `then`, after an `if` that always holds, because Prefect's form would show
    `properties` as 200 fields instead of one. `unevaluatedProperties` refuses keys that `then` does
    not name.
    """
    schema = Params.model_json_schema()
    keys = merged(_keys(schema, schema["$defs"], ""))
    names = {key.replace("\\", ""): value for key, value in keys.items() if ANY_NAME not in key}
    patterns = {f"^{key}$": value for key, value in keys.items() if ANY_NAME in key}
    then = {"properties": names, "patternProperties": patterns}
    return {"type": "object", "if": {}, "then": then, "unevaluatedProperties": False}


def merged(keys: Iterable[tuple[str, Schema]]) -> dict[str, Schema]:
    """Return the schema of every key; a key of several alternatives takes the values of each."""
    schemas: dict[str, list[Schema]] = {}
    for key, schema in keys:
        if schema not in schemas.setdefault(key, []):
            schemas[key].append(schema)
    return {
        key: found[0] if len(found) == 1 else {"anyOf": found} for key, found in schemas.items()
    }


def _keys(schema: Schema, definitions: Schema, prefix: str) -> Iterator[tuple[str, Schema]]:
    """Yield every key below a section as a regular expression, with the schema of its value.

    The value of a section is any object.
    """
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    for option in schema.get("anyOf") or schema.get("oneOf") or ():
        yield from _keys(option, definitions, prefix)
    properties = schema.get("properties", {})
    children = {re.escape(name): child for name, child in properties.items()}
    if isinstance(additional := schema.get("additionalProperties"), dict):
        named = "|".join(children)  # have a schema of their own
        children[f"(?!({named})(\\.|$)){ANY_NAME}" if named else ANY_NAME] = additional
    elif additional:
        yield f"{prefix}{ANY_NAME}(\\..+)?", {}
    for name, child in children.items():
        nested = merged(_keys(child, definitions, f"{prefix}{name}\\."))
        yield f"{prefix}{name}", _value(child, definitions, is_section=bool(nested))
        yield from nested.items()


def _value(schema: Any, definitions: Schema, is_section: bool) -> Any:  # noqa: ANN401  # any JSON value
    """Return the schema of a value, with references resolved.

    The content of a section is not checked here, but when the run writes its settings.
    """
    if isinstance(schema, list):
        return [_value(item, definitions, False) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if is_section and "anyOf" in schema:  # with null, for one that may be absent
        kinds = [(option, option.get("type", "object") == "object") for option in schema["anyOf"]]
        return {"anyOf": [_value(option, definitions, is_inner) for option, is_inner in kinds]}
    if is_section:
        return {"type": "object"}
    if "$ref" in schema:
        return _value(definitions[schema["$ref"].rpartition("/")[2]], definitions, False)
    return {
        key: _value(value, definitions, False)
        for key, value in schema.items()
        if key not in ("title", "default")
    }


Overrides = Annotated[dict[str, Any], WithJsonSchema(overrides_schema())]
