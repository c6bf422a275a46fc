"""Section `data`: one subsection for each registered task, and one for each task of your own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, create_model, model_validator
from pydantic_core import PydanticKnownError

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.errors import unknown
from dopsd.core.settings import Section
from dopsd.tasks.common.config import TaskConfig
from dopsd.tasks.custom.config import CustomTaskConfig
from dopsd.tasks.custom.verifiers.config import EXTERNAL
from dopsd.tasks.registry import CUSTOM, TASKS

NAME = re.compile("[a-z0-9_]{1,100}")


def is_custom(section: object) -> bool:
    """Return whether a section of raw settings defines a task of the user's own."""
    return isinstance(section, dict) and section.get("type") == CUSTOM


def own_tasks(raw: object) -> dict[str, Any]:
    """Return the sections of raw settings that define tasks, by name; none of broken settings."""
    data = raw.get("data") if isinstance(raw, dict) else None
    sections = data if isinstance(data, dict) else {}
    return {str(name): section for name, section in sections.items() if is_custom(section)}


def defined(section: Any) -> Any:  # noqa: ANN401  # any YAML value
    """Refuse a section that defines no task, as an unknown key or an unknown type."""
    if isinstance(section, CustomTaskConfig) or is_custom(section):
        return section
    if isinstance(section, dict) and isinstance(section.get("type"), str):
        raise ValueError(unknown(f"type {section['type']:.80}", [CUSTOM]))
    raise PydanticKnownError("extra_forbidden")


class OwnTasks(Section):
    """Section `data`: the registered tasks, and tasks of the user's own under other names."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[CustomTaskConfig, BeforeValidator(defined)]]

    @property
    def tasks(self) -> dict[str, TaskConfig]:
        """The section of every task, by name, sorted."""
        return dict(sorted((vars(self) | self.custom).items()))

    @property
    def custom(self) -> dict[str, CustomTaskConfig]:
        """The sections of the user's own tasks, by name."""
        return dict(self.__pydantic_extra__ or {})

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
