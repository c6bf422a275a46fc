"""`python deploy.py` in the project's root: the work pool and the deployments of prefect.yaml, made
or brought up to date.

The worker's init container runs it. The pool's job template is job-template.json with the overlay's
job-defaults.json, and with the image and the namespace that kustomize wrote into the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
POOL = "dopsd"  # as prefect.yaml names it
WAIT = 300.0  # seconds for the server to become healthy; after that Kubernetes starts this again
LOOK_EVERY = 2.0


def job_template(template: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The template with these defaults; one for a variable that it lacks is a mistake."""
    properties = template["variables"]["properties"]
    unknown = sorted(defaults.keys() - properties.keys())
    if unknown:
        sys.exit(f"job-defaults.json: {', '.join(unknown)}: no such variable in job-template.json")
    filled = {
        name: variable | ({"default": defaults[name]} if name in defaults else {})
        for name, variable in properties.items()
    }
    return template | {"variables": template["variables"] | {"properties": filled}}


def wait_for(url: str) -> None:
    deadline = time.monotonic() + WAIT
    while True:
        try:
            with urllib.request.urlopen(url, timeout=LOOK_EVERY):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            if time.monotonic() > deadline:
                sys.exit(f"{url} did not answer for {WAIT:.0f} seconds: {error}")
            time.sleep(LOOK_EVERY)


def prefect(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "prefect", "--no-prompt", *words], check=True)


def main() -> None:
    overrides = {"image": os.environ["DOPSD_IMAGE"], "namespace": os.environ["DOPSD_NAMESPACE"]}
    template = json.loads((HERE / "job-template.json").read_text())
    defaults = json.loads((HERE / "job-defaults.json").read_text())
    wait_for(os.environ["PREFECT_API_URL"] + "/health")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job_template(template, defaults | overrides), file)
        file.flush()
        prefect(
            "work-pool",
            "create",
            POOL,
            "--type",
            "kubernetes",
            "--base-job-template",
            file.name,
            "--overwrite",
        )
    prefect(
        "work-pool", "set-concurrency-limit", POOL, "1"
    )  # one volume, one params.yaml: the next run waits
    prefect("deploy", "--all")


if __name__ == "__main__":
    main()
