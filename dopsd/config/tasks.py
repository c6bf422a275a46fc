"""Section `data`: one subsection for each registered task, and one for each task of your own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, create_model, model_validator
from pydantic_core import PydanticKnownError

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.errors import unknown
from dopsd.core.settings import Section
from dopsd.tasks.common.config import TaskConfig
from dopsd.tasks.custom.config import CustomTaskConfig
from dopsd.tasks.custom.verifiers.config import EXTERNAL
from dopsd.tasks.reasoning_gym.config import VERSION, ReasoningGymConfig
from dopsd.tasks.registry import CUSTOM, GYM, GYM_NAME, TASKS, type_of

NAME = re.compile("[a-z0-9_]{1,100}")
NAMING = (  # keys that name tasks
    ("matrix", "tasks"),
    ("evaluate", "watch"),
    ("adapt", "tasks"),
    ("ablate", "task"),
    ("verify_teacher", "tasks"),
)


def defines(section: object) -> bool:
    """Return whether a section of raw settings defines a task."""
    return isinstance(section, dict) and section.get("type") in (CUSTOM, GYM)


def own_tasks(raw: object) -> dict[str, Any]:
    """Return the sections of raw settings that define tasks, by name; none of broken settings."""
    data = raw.get("data") if isinstance(raw, dict) else None
    sections = data if isinstance(data, dict) else {}
    return {str(name): section for name, section in sections.items() if defines(section)}


def by_name(name: str) -> dict[str, Any]:
    """Return the section of a task of reasoning-gym that has none: its dataset as it stands."""
    return {"type": GYM, "dataset": name.removeprefix(GYM_NAME), "version": VERSION}


def with_named(raw: Any) -> Any:  # noqa: ANN401  # any YAML value
    """Return raw settings with the sections of tasks gym_... that other sections name."""
    if not isinstance(raw, dict) or not isinstance(data := raw.get("data", {}), dict):
        return raw
    named = [raw[s].get(key) for s, key in NAMING if isinstance(raw.get(s), dict)]
    names = [n for value in named for n in (value if isinstance(value, list) else [value])]
    new = [name for name in names if isinstance(name, str) and name.startswith(GYM_NAME)]
    return raw | {"data": {name: by_name(name) for name in new} | data} if new else raw


def defined(section: Any) -> Any:  # noqa: ANN401  # any YAML value
    """Refuse a section that defines no task, as an unknown key or an unknown type."""
    if isinstance(section, TaskConfig) or defines(section):
        return section
    if isinstance(section, dict) and isinstance(section.get("type"), str):
        raise ValueError(unknown(f"type {section['type']:.80}", [CUSTOM, GYM]))
    raise PydanticKnownError("extra_forbidden")


Defined = Annotated[CustomTaskConfig | ReasoningGymConfig, Field(discriminator="type")]


class OwnTasks(Section):
    """Section `data`: the registered tasks, and tasks of the user's own under other names."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[Defined, BeforeValidator(defined)]]

    @property
    def tasks(self) -> dict[str, TaskConfig]:
        """The section of every task, by name, sorted."""
        return dict(sorted((vars(self) | self.custom).items()))

    @property
    def custom(self) -> dict[str, CustomTaskConfig | ReasoningGymConfig]:
        """The sections that define tasks, by name."""
        return dict(self.__pydantic_extra__ or {})

    def with_named(self, name: str) -> Self:
        """Return the section with a task gym_... that it may lack."""
        if not name.startswith(GYM_NAME) or name in self.custom:
            return self
        return self.model_copy(update={name: ReasoningGymConfig.model_validate(by_name(name))})

    @model_validator(mode="after")
    def names_are_folders(self) -> Self:
        """Refuse names that cannot be folders, or that folders of dopsd have."""
        taken = (*TASKS.shared, EXTERNAL.name)
        for name in self.custom:
            if not NAME.fullmatch(name) or name in taken:
                raise ValueError(
                    f"{name[:80]!r}: expected lowercase letters, digits and _ in the name of a"
                    f" task, not {', '.join(taken)}"
                )
            if (kind := self.custom[name].type) != type_of(name):
                raise ValueError(
                    f"{name}: names of tasks with type: {GYM} begin with {GYM_NAME}, and no others;"
                    f" found type: {kind}"
                )
        return self


if TYPE_CHECKING:

    class TasksConfig(OwnTasks):
        """Section `data`, with one field for each registered task."""

        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401  # the registry knows its class

    class AlgorithmsConfig(Section):
        """Section `method`, with one field for each registered algorithm."""

        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401  # the registry knows its class

else:
    made = (("TasksConfig", OwnTasks, TASKS), ("AlgorithmsConfig", Section, ALGORITHMS))
    for name, base, registry in made:
        classes = {key: registry.config_class(key) for key in registry.names}
        fields = {key: (config_class, config_class()) for key, config_class in classes.items()}
        globals()[name] = create_model(name, __base__=base, **fields)
