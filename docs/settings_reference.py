"""The page configuration.md: every setting with its type, bounds, default and meaning.

All of it comes from the classes of the settings, whose comments say what a key means
(field_meanings.py).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from field_meanings import intro, meaning

from dopsd.config.params import Params
from dopsd.config.params_file import flat
from dopsd.config.profiles import names, resolve
from dopsd.config.profiles.layers import Family, families, language_models
from dopsd.config.tasks import AlgorithmsConfig, TasksConfig
from dopsd.core.settings import LARGEST, Section
from dopsd.tasks.custom.config import CustomTaskConfig
from dopsd.tasks.reasoning_gym.config import ReasoningGymConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic.fields import FieldInfo

DOCS = Path(__file__).parent
PAGES_OF = {TasksConfig: "tasks", AlgorithmsConfig: "algorithms"}  # folders of docs/
IN_PROFILES = ("updates", "prompts_per_collect", "learning_rate")  # keys of train in that table
HEAD = """# Configuration

`params.yaml` holds the settings of what its `matrix` runs. A key that the file leaves out has the
default below: the published setting for LLaDA-8B. With a base in `base/`, a task or a method whose
whole section is left out has the values of profile `embedded`. A [profile](#profiles) is a
whole `params.yaml` for one model and task; `embedded` is the one that comes as `params.yaml`.

<!-- run -->
```bash
dopsd params --profile embedded        # write the settings of a profile
dopsd params --set train.updates=50    # change one key; comments stay, yours too
dopsd params --set 'matrix.methods=[d_opsd, rft]'    # add a method, and its section
dopsd check                            # check keys, values, combinations and files
```

An unknown key, a wrong type and a combination that cannot run end a command with exit code 2 before
anything loads. `params.yaml` has limits:

| what | limit |
| --- | --- |
| whole numbers | below 2^63 |
| names of protocols, tables and the registered model | letters, digits, spaces and `_ . + -` |"""

BATCH_SIZES = (
    "Profiles of small bases set another `batch_size`, in `sampling` and all protocols, and some"
    " `sampling.min_rows` (after the comma):"
)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; a line break or a bar in a cell would end the cell."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [[" ".join(cell.replace("|", r"\|").split()) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def limits(schema: dict[str, Any], **signs: str) -> str:
    """Return the bounds of a value, such as `>= 0 and < 1`, without those that a database sets."""
    bounds = {
        sign: schema[key] for key, sign in signs.items() if abs(schema.get(key, LARGEST)) < LARGEST
    }
    if "at least" in bounds and bounds.get("at least") == bounds.get("at most"):
        return str(bounds["at least"])
    return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds.items())


def type_text(schema: dict[str, Any]) -> str:
    """Return a JSON schema in words: `whole number >= 1`, `one of a, b`, `number or null`."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"section [{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(type_text, schema["anyOf"]))
    if "const" in schema or "enum" in schema:
        choices = schema.get("enum") or [schema["const"]]
        return f"{'one of ' * (len(choices) > 1)}{', '.join(f'`{choice}`' for choice in choices)}"
    return simple_type_text(schema)


def simple_type_text(schema: dict[str, Any]) -> str:
    """Return a schema without alternatives in words."""
    kind = schema.get("type", "any value")
    if kind == "array":
        length = limits(schema, minItems="at least", maxItems="at most")
        return f"list of {type_text(schema['items'])}{f' (length {length})' * bool(length)}"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"names, {type_text(values)} each" if isinstance(values, dict) else "any keys"
    if kind == "string":
        length = limits(schema, minLength="at least", maxLength="at most")
        return f"text{f' (length {length})' * bool(length)}"
    words = {"integer": "whole number", "number": "number", "boolean": "true or false"}
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    return f"{words.get(kind, kind)} {limits(schema, **signs)}".strip()


def shown(value: object) -> str:
    """Return a value as params.yaml has it, on one line."""
    if isinstance(value, Section):
        return shown(value.model_dump(exclude_unset=True))
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {shown(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    return value if isinstance(value, str) and value else json.dumps(value)


def default(field: FieldInfo) -> str:
    """Return a field's default; of a section, what the field sets differently from its class."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return f"`{shown(value)}`"


def parts_of(annotation: Any) -> Iterator[type[Section]]:  # noqa: ANN401  # of any type
    """Yield the sections inside an annotation, such as that of `dict[str, EvalProtocol]`."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from parts_of(argument)


def sections(kind: type[Section] = Params, path: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Yield the sections of params.yaml that hold values, each with its dotted key."""
    for name, field in kind.model_fields.items():
        section: Any = field.annotation
        if section in PAGES_OF:
            yield from sections(section, f"{path}{name}.")
            if section is TasksConfig:
                yield f"{path}{name}.NAME", CustomTaskConfig
                yield f"{path}{name}.gym_NAME", ReasoningGymConfig
        else:
            yield f"{path}{name}", section


def shared_parts() -> dict[type[Section], list[str]]:
    """Return the sections inside other sections, each with the keys that hold one."""
    found: dict[type[Section], list[str]] = {}
    waiting = list(sections())
    for path, kind in waiting:
        for name, field in kind.model_fields.items():
            for part in parts_of(field.annotation):
                waiting += [] if part in found else [(part.__name__, part)]
                found.setdefault(part, []).append(f"`{path}.{name}`")
    return found


def settings_rows(kind: type[Section]) -> list[list[str]]:
    """Return key, type, default and meaning of every setting in a section."""
    properties = kind.model_json_schema()["properties"]
    return [
        [f"`{name}`", type_text(properties[name]), default(field), meaning(kind, name)]
        for name, field in kind.model_fields.items()
    ]


def section_text(*head: str, kind: type[Section]) -> str:
    """Return a section's part of the page: its purpose and its settings."""
    keys = table(["key", "type", "default", "meaning"], settings_rows(kind))
    return "\n\n".join(filter(None, [*head, intro(kind), keys]))


def profile_row(name: str) -> list[str]:
    """Return what distinguishes a profile."""
    raw = resolve(name)
    lengths = ", ".join(
        str(raw["sampling"][key]) for key in ("gen_length", "block_length", "steps")
    )
    cells = [f"`{name}`", ", ".join(raw["matrix"]["tasks"]), f"`{raw['model']['path']}`", lengths]
    protocols = ", ".join(f"`{protocol}`" for protocol in raw["evaluate"]["protocols"])
    return [*cells, *(shown(raw["train"][key]) for key in IN_PROFILES), protocols]


def layer_row(name: str, layer: dict[str, Any]) -> list[str]:
    """Return what a preset or a kind of hardware sets, a key a line."""
    sections = {
        "protocol.": "evaluate.protocols.*.",
        "limit": "data.TASK.limit",
        "at_once": "runs side by side",
    }
    found = re.compile("^(protocol[.]|limit$|at_once$)")
    keys = {found.sub(lambda m: sections[m[0]], k): v for k, v in flat(layer).items()}
    return [f"`{name}`", "<br>".join(f"`{key}: {shown(value)}`" for key, value in keys.items())]


def batch_rows() -> list[list[str]]:
    """Return the batch sizes of the bases that have others than those of the hardware."""
    kinds = language_models()["hardware"]
    return [
        [f"`{name}`", *(sizes_of(family, kind) for kind in kinds)]
        for name, family in families().items()
        if family.batch_size
    ]


def sizes_of(family: Family, hardware: str) -> str:
    """Return the batch size and the least rows of a base on this hardware, where it has them."""
    sizes = family.batch_size.get(hardware), family.min_rows.get(hardware)
    return ", ".join(str(size) for size in sizes if size)


def profiles_text() -> str:
    """Return the profiles that come with the package, and what presets and hardware set in them."""
    head = ["profile", "tasks", "base", "length, block, steps", *IN_PROFILES, "protocols"]
    parts = ["## Profiles", table(head, [profile_row(name) for name in names()])]
    layers = language_models()
    for option, layer in (("--preset", "presets"), ("--hardware", "hardware")):
        rows = [layer_row(*item) for item in layers[layer].items()]
        parts.append(table([f"`{option}` of a language model", "sets"], rows))
    parts += [BATCH_SIZES, table(["profiles", *layers["hardware"]], batch_rows())]
    return "\n\n".join(parts)


def page_link(key: str) -> str:
    """Return a link to the page of a task or an algorithm; nothing where there is none."""
    group, _, name = key.rpartition(".")
    folder = PAGES_OF.get(Params.model_fields[group].annotation) if group else None
    page = f"{folder}/{name}.md"
    return f"Page: [{name}]({page})." if (DOCS / page).is_file() else ""


def configuration_page() -> str:
    """Return the page."""
    parts = [HEAD, profiles_text()]
    for key, kind in sections():
        group, dot, _ = key.rpartition(".")
        if dot and f"## {group}" not in parts:
            parts.append(f"## {group}")
        parts.append(section_text(f"{'###' if dot else '##'} {key}", page_link(key), kind=kind))
    parts.append("## Sections inside sections")
    for kind, keys in shared_parts().items():
        parts.append(section_text(f"### {kind.__name__}", f"In {', '.join(keys)}.", kind=kind))
    return "\n\n".join(parts) + "\n"
