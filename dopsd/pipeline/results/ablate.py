"""`dopsd ablate NAME`: train a method with one setting changed at a time, and compare the results.

Section `ablate` of params.yaml names the variants and their tables (paper, Tables 3 to 8). Variants
that `ablate.run` lists are stages of dvc.yaml, and run through DVC.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from dopsd.algorithms.common.config import BETWEEN, AlgorithmConfig
from dopsd.algorithms.registry import ALGORITHMS, variant_of
from dopsd.analysis.figures import axes_of, percent_axis, save_figure
from dopsd.analysis.html_report.comparison_text import of_starts
from dopsd.analysis.results import Finished, between_runs, paired_over_seeds
from dopsd.analysis.tables import (
    RESAMPLED,
    chosen_on,
    cost_cells,
    draw_group,
    gaps_of,
    head,
    line,
    means,
    print_markdown,
)
from dopsd.config.params import Params
from dopsd.config.params_file import params as write_params
from dopsd.config.profiles import HARDWARE, PRESET
from dopsd.core.errors import Code, DopsdError
from dopsd.core.extras import require
from dopsd.core.files import WORK, fresh_folder, write_json
from dopsd.core.palette import colour_of
from dopsd.core.paths import REPORTS
from dopsd.core.progress import log
from dopsd.core.statistics import gap, percent, within
from dopsd.evaluation.published import published_variants
from dopsd.pipeline.dvc.command import run as run_dvc
from dopsd.training.run_identity import identify, read_identity
from dopsd.training.run_settings import RunSettings

DEFAULT = "default"
OUT = REPORTS / "ablations"


def ablate(params: Params, names: Sequence[str]) -> None:
    """Train what is missing of some tables of `ablate.tables`, then write and print each.

    Args:
        names: Tables to make; if empty, print which tables exist and return.
    """
    tables = params.ablate.tables
    unknown = [name for name in names if name not in tables]
    if unknown:
        raise Code.UNKNOWN_NAME.error(
            f"ablate: {', '.join(unknown)}: unknown; section ablate of params.yaml has"
            f" {', '.join(tables)}"
        )
    if not names:
        sys.stdout.write(
            "".join(f"{name}: {', '.join(variants)}\n" for name, variants in tables.items())
        )
        return
    for package in ("dvc", "matplotlib"):
        require("ablate", package)
    _reproduce(
        params,
        list(
            dict.fromkeys(v for name in names for v in [DEFAULT, *_distinct(params, tables[name])])
        ),
    )
    for name in names:
        print_markdown(write(params, name))


def _distinct(params: Params, variants: Sequence[str]) -> list[str]:
    """Return the variants whose settings differ from those of params.yaml, the default row."""
    return [name for name in variants if params.changed(name) != params.changed(DEFAULT)]


def _reproduce(params: Params, variants: Sequence[str]) -> None:
    all_variants = [
        *params.ablate.run,
        *(name for name in variants if name not in params.ablate.run),
    ]
    for changed in write_params(
        None, PRESET, HARDWARE, [f"ablate.run=[{', '.join(all_variants)}]"], Path("params.yaml")
    ):
        log(f"ablate: params.yaml: {changed}")
    stages = [f"variant@{name}-{seed}" for name in variants for seed in params.ablate.seeds]
    log(f"ablate: {len(stages)} runs through DVC; finished ones do not run again")
    status = run_dvc(["repro", *stages])
    if status:
        raise Code.STAGE_FAILED.error(
            f"ablate: dvc ended with exit code {status}, see above; the same command continues",
            status,
        )


def runs_of(params: Params, variant: str) -> list[Finished]:
    """Return the runs of a variant, one for each seed of `ablate.seeds`."""
    a = params.ablate
    return [Finished(a.task, f"{a.method}{BETWEEN}{variant}", seed) for seed in a.seeds]


def write(params: Params, name: str, out: Path = OUT) -> str:
    """Write table and figure of one ablation to `out`/NAME, and return the table as Markdown."""
    unchanged = [
        v
        for v in params.ablate.tables[name]
        if v not in _distinct(params, params.ablate.tables[name])
    ]
    label = f"{' = '.join(unchanged)} (params.yaml)" if unchanged else "as in params.yaml"
    rows = {label: runs_of(params, DEFAULT)} | {
        v: runs_of(params, v) for v in _distinct(params, params.ablate.tables[name])
    }
    text, values = table(params, name, rows)
    with fresh_folder(out / name) as tmp:
        (tmp / "ablation.md").write_text(text, encoding="utf-8")
        write_json(tmp / "ablation.json", values)
        _draw(rows, f"{name}: {params.ablate.method} on {params.ablate.task}", tmp / "accuracy.png")
    log(f"ablate: {out / name}/ablation.md, ablation.json and accuracy.png")
    return text


def table(
    params: Params, name: str, rows: dict[str, list[Finished]]
) -> tuple[str, dict[str, dict[str, object]]]:
    """Return an ablation as Markdown and as values, one row for each variant.

    Args:
        rows: Runs by row label; each row is paired with the first by problem and seed.
    """
    a, resamples = params.ablate, params.evaluate.bootstrap
    description = (
        f"{a.method} on {a.task}, {len(a.seeds)} seed{'s' * (len(a.seeds) > 1)}, accuracy in %"
    )
    first, values = next(iter(rows.values())), {}
    split, n = chosen_on(first[0]), first[0].tested["base"]["n"]
    lines = [
        (
            f"Ablation `{name}`: {description}. Chosen on {split}, tested once on {n} problems."
            f" {RESAMPLED}"
        ),
        "",
    ]
    for warning in between_runs([run for runs in rows.values() for run in runs]):
        lines += [f"Warning: {warning}", ""]
    for text in of_starts([run for runs in rows.values() for run in runs]):
        lines += [text, ""]
    published_accuracies = published_variants(a.method, a.task)
    columns = [
        "trained",
        "minus the first row",
        "minus the base",
        "last checkpoint",
        "updates",
        "rollouts",
        "seconds",
    ]
    lines += head(name, *columns, *(["PUBLISHED, not run here"] if published_accuracies else []))
    for label, runs in rows.items():
        ((_, _, seeds, accuracy, over_base, cost),) = means(runs, resamples)
        published_accuracy = published_accuracies.get(DEFAULT if runs is first else label, "")
        over_first = None if runs is first else paired_over_seeds(gaps_of(runs, first), resamples)
        last = sum(run.points()[-1][1] for run in runs) / len(runs)
        cells = [gap(*over_first) if over_first else "", gap(*over_base), percent(last)]
        cells += [
            *cost_cells(cost, ("updates", "rollouts", "seconds")),
            *([str(published_accuracy)] if published_accuracies else []),
        ]
        lines.append(line(label, within(*accuracy), *cells))
        values[label] = {
            "seeds": seeds,
            "trained": accuracy,
            "over_first": over_first,
            "over_base": over_base,
        }
        values[label] |= {"last": last, "cost": cost}
    note = (
        f"`last checkpoint`: accuracy on {split}, which shows a collapse; costs count up to the"
        " chosen checkpoint."
    )
    return "\n".join([*lines, "", note]) + "\n", values


def _draw(rows: dict[str, list[Finished]], title: str, path: Path) -> None:
    """Draw accuracy on the selection split against updates, one colour for each variant."""
    figure, axes = axes_of(1, 1, 4)
    for index, (label, runs) in enumerate(rows.items()):
        draw_group(axes[0][0], runs, "updates", colour_of(index), label)
    axes[0][0].set(xlabel="update", ylabel="accuracy on the selection split")
    axes[0][0].set_title(title, loc="left", fontsize=10)
    percent_axis(axes[0][0])
    axes[0][0].legend(frameon=False)
    save_figure(figure, path)


def variant_of_run(run: RunSettings, fingerprint: str) -> str:
    """Return the name of the method that a finished run's settings are; empty: the algorithm's.

    It is empty too where the settings are not known: training left no record, and params.yaml has
    other ones.

    Args:
        run: the run with the settings of params.yaml.
        fingerprint: name of the folder in work/ that trained it, as train.json has it.
    """
    config = _trained_with(run, fingerprint)
    return variant_of(run.kind, config) if config else ""


def _trained_with(run: RunSettings, fingerprint: str) -> AlgorithmConfig | None:
    """Return the settings of the run's algorithm; None where they are not known."""
    recorded = read_identity(WORK / fingerprint).get("settings", {}).get(run.kind)
    if recorded is not None:
        with suppress(ValidationError):  # of a release with other keys
            config: AlgorithmConfig = ALGORITHMS.config_class(run.kind).model_validate(recorded)
            return config
        return None
    with suppress(DopsdError):  # without the data nobody can tell
        return run.algorithm if fingerprint == identify(run).folder.name else None
    return None
