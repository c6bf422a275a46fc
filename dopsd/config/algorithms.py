"""Section `method`: one subsection for each registered algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import create_model

from dopsd.algorithms.registry import ALGORITHMS
from dopsd.core.settings import Section

if TYPE_CHECKING:

    class AlgorithmsConfig(Section):
        """Section `method`, with one field for each registered algorithm."""

        def __getattr__(self, name: str) -> Any: ...  # noqa: ANN401  # the registry knows its class

else:
    classes = {name: ALGORITHMS.config_class(name) for name in ALGORITHMS.names}
    AlgorithmsConfig = create_model(
        "AlgorithmsConfig",
        __base__=Section,
        **{name: (config_class, config_class()) for name, config_class in classes.items()},
    )
