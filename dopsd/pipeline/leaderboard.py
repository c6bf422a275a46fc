"""`dopsd leaderboard`: one HTML page of a tournament's results, and its runs in MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dopsd.analysis.html_report.leaderboard_board import run_name
from dopsd.analysis.html_report.leaderboard_page import (
    LeaderboardFacts,
    leaderboard_page,
    published_of,
)
from dopsd.analysis.html_report.page import INPUTS, write_page
from dopsd.config.params_file import flat
from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.core.extras import require
from dopsd.core.files import WORK, read_json, write_json
from dopsd.core.paths import REPORTS
from dopsd.core.progress import log
from dopsd.pipeline.leaderboard_results import read_results
from dopsd.pipeline.repeat import ABSENT, as_text

if TYPE_CHECKING:
    from pathlib import Path

    from dopsd.config.params import Params

RESULTS = REPORTS / "tournament" / "results.json"
PAGE = REPORTS / "leaderboard.html"
LINKS = WORK / "leaderboard.json"  # addresses of the runs, from the last --publish


def leaderboard(params: Params, results_file: Path, out: Path, publishes: bool) -> None:
    """Write the page, and send the runs and the page to MLflow where that is asked for.

    Args:
        params: all settings; the page shows what differs from them.
        results_file: what `dopsd tournament` wrote.
        out: the page to write; only an earlier page of dopsd is replaced.
        publishes: send the runs and the page to MLflow.

    Raises:
        DopsdError: if the results cannot be read, `out` is another file, or MLflow fails.
    """
    require("leaderboard", "bokeh")
    _check_replaceable(out)
    results = read_results(results_file)
    if publishes:
        from dopsd.tracking.publish_tournament import publish

        links = publish(results, params.tracking)
        save_links(results, links)
    else:
        links = saved_links(results)
    facts = LeaderboardFacts(
        results=results,
        changed=changed_settings(results, params),
        links=links,
        published=published_of(results),
    )
    write_page(out, leaderboard_page(facts))
    log(f"leaderboard: wrote {len(results['runs'])} runs to {out}")
    if publishes:
        from dopsd.tracking.publish_tournament import publish_page

        address = publish_page(out, params.tracking)
        log(f"leaderboard: the page and its runs are in MLflow: {address}")


def save_links(results: dict[str, Any], links: dict[str, str]) -> None:
    """Save the addresses of runs in MLflow for the next page."""
    write_json(LINKS, {_key(run): links[run_name(run)] for run in results["runs"]})


def saved_links(results: dict[str, Any]) -> dict[str, str]:
    """Return the addresses from the last --publish, of runs that are still the same."""
    saved = read_json(LINKS, "dopsd leaderboard --publish") if LINKS.is_file() else {}
    return {run_name(run): saved[_key(run)] for run in results["runs"] if _key(run) in saved}


def _key(run: dict[str, Any]) -> str:
    return f"{run_name(run)} {run['fingerprint']}"


def changed_settings(
    results: dict[str, Any], params: Params
) -> dict[str, dict[str, tuple[str, str]]]:
    """Return by run the settings that differ from params.yaml: the run's value, and the file's."""
    now = {key: as_text(value) for key, value in flat(params.model_dump(mode="json")).items()}
    return {
        run_name(run): {
            key: (value, now.get(key, ABSENT))
            for key, value in run["settings"].items()
            if value != now.get(key, ABSENT)
        }
        for run in results["runs"]
    }


def _check_replaceable(out: Path) -> None:
    """Refuse a path that holds anything but a page of dopsd, since it would be replaced."""
    if out.is_file() and INPUTS.search(out.read_text(errors="replace", encoding="utf-8")):
        return
    if out.exists() or out.is_symlink():
        raise DopsdError(
            f"--out {out}: already exists and is not a page of dopsd; name a new file",
            code=Code.OUTPUT_EXISTS,
        )
