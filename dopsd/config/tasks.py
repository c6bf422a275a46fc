"""Section `data`: one subsection for each registered task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import create_model

from dopsd.core.settings import Section
from dopsd.tasks.registry import TASKS

if TYPE_CHECKING:

    class TasksConfig(Section):
        """Section `data`, with one field for each registered task."""

        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401  # the registry knows its class

else:
    classes = {name: TASKS.config_class(name) for name in TASKS.names}
    TasksConfig = create_model(
        "TasksConfig",
        __base__=Section,
        **{name: (config_class, config_class()) for name, config_class in classes.items()},
    )
