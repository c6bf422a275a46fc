"""On-policy self-distillation for diffusion language models, as a library: docs/library.md.

`import dopsd` alone imports nothing heavy; a name is loaded where it is first used.

Example:
    >>> import dopsd
    >>> run = dopsd.run_settings("embedded")
    >>> policy = dopsd.load_policy(dopsd.embedded_base())
    >>> (rollout,) = dopsd.sample(policy, ["0410020420430020"], run)
    >>> print(dopsd.trace(policy, rollout)[0].text)
    ········································
"""

from __future__ import annotations

TYPE_CHECKING = False  # as of `typing`: `dopsd` loads this module before it can handle Ctrl-C
if TYPE_CHECKING:
    __version__: str

    from dopsd.api.loss import d_opsd_loss, training_states
    from dopsd.api.policy import embedded_base, load_policy
    from dopsd.api.sampling import TraceStep, sample, score, trace
    from dopsd.api.settings import load_task, run_settings
    from dopsd.api.training import TrainedRun, prepare, train
    from dopsd.core.errors import DopsdError
    from dopsd.core.types import Problem, Rollout, Score
    from dopsd.models.config import AdapterConfig
    from dopsd.training.run_settings import RunSettings

__all__ = [
    "AdapterConfig",
    "DopsdError",
    "Problem",
    "Rollout",
    "RunSettings",
    "Score",
    "TraceStep",
    "TrainedRun",
    "d_opsd_loss",
    "embedded_base",
    "load_policy",
    "load_task",
    "prepare",
    "run_settings",
    "sample",
    "score",
    "trace",
    "train",
    "training_states",
]
_MODULES = {
    "dopsd.api.loss": ("d_opsd_loss", "training_states"),
    "dopsd.api.policy": ("embedded_base", "load_policy"),
    "dopsd.api.sampling": ("TraceStep", "sample", "score", "trace"),
    "dopsd.api.settings": ("load_task", "run_settings"),
    "dopsd.api.training": ("TrainedRun", "prepare", "train"),
    "dopsd.core.errors": ("DopsdError",),
    "dopsd.core.types": ("Problem", "Rollout", "Score"),
    "dopsd.models.config": ("AdapterConfig",),
    "dopsd.training.run_settings": ("RunSettings",),
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    for module, names in _MODULES.items():
        if name in names:
            value: object = getattr(import_module(module), name)
            globals()[name] = value
            return value
    if name == "__version__":
        # takes ten times as long to import as all the rest of this module
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("dopsd")
        except PackageNotFoundError:  # code that is not installed
            return "unknown"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
