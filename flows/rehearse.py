"""`prefect deployment run dopsd-rehearse/rehearse`: estimate a cost, run it in small."""

import json

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State

from dopsd.config.profiles import AS_IT_STANDS
from flows.running import DOPSD, CommandFailed, failed, run
from flows.settings import Hardware, Overrides, Preset, Profile


@flow(name="dopsd-rehearse")
def rehearse(
    profile: Profile = "embedded",
    preset: Preset = "reference",
    hardware: Hardware = "1x80gb",
    overrides: Overrides | None = None,
) -> State[None] | None:
    """Estimate the real cost, then run every stage with two updates on a tiny random model.

    Runs in a folder of its own; params.yaml does not change.

    Args:
        profile: Ready settings to rehearse.
        preset: For profiles of language models: `reference` follows the published code, `paper`
            the paper's equations; `small` is `reference` on few problems.
        hardware: For profiles of language models: the hardware that the estimate is for.
        overrides: Keys of params.yaml by full name, with their values.
    """
    words = [f"--set={key}={json.dumps(value)}" for key, value in (overrides or {}).items()]
    if profile != AS_IT_STANDS:
        words += ["--profile", profile]
        words += ["--preset", preset, "--hardware", hardware] if profile != "embedded" else []
    try:
        lines = run("rehearse", (*DOPSD, "rehearse", *words), get_run_logger())
    except CommandFailed as error:
        return failed(error)
    create_markdown_artifact(
        "```\n" + "\n".join(lines) + "\n```\n",
        key="rehearsal",
        description=f"Rehearsal of {profile}",
    )
    return None
