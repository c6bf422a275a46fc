"""`python deploy.py` in the project's root: create or update work pool and deployments.

The worker's init container runs this script. The pool's job template is job-template.json with the
defaults of the overlay's job-defaults.json, and with image and namespace from the environment.
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
WAIT = 300.0  # seconds for the server to answer; after that Kubernetes starts this script again
LOOK_EVERY = 2.0


def job_template(template: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the job template with other defaults; exit if a variable does not exist."""
    properties = template["variables"]["properties"]
    unknown = sorted(defaults.keys() - properties.keys())
    if unknown:
        sys.exit(f"job-defaults.json: {', '.join(unknown)}: no such variable of job-template.json")
    filled = {
        name: variable | ({"default": defaults[name]} if name in defaults else {})
        for name, variable in properties.items()
    }
    return template | {"variables": template["variables"] | {"properties": filled}}


def wait_for(url: str) -> None:
    """Wait until a URL answers; exit after WAIT seconds."""
    deadline = time.monotonic() + WAIT
    while True:
        try:
            with urllib.request.urlopen(url, timeout=LOOK_EVERY):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            if time.monotonic() > deadline:
                sys.exit(f"{url}: no answer for {WAIT:.0f} s: {error}")
            time.sleep(LOOK_EVERY)


def prefect(*words: str) -> None:
    """Run a `prefect` command."""
    subprocess.run([sys.executable, "-m", "prefect", "--no-prompt", *words], check=True)


def main() -> None:
    """Create the work pool with its job template and limit, then deploy prefect.yaml."""
    overrides = {"image": os.environ["DOPSD_IMAGE"], "namespace": os.environ["DOPSD_NAMESPACE"]}
    template = json.loads((HERE / "job-template.json").read_text(encoding="utf-8"))
    defaults = json.loads((HERE / "job-defaults.json").read_text(encoding="utf-8"))
    wait_for(os.environ["PREFECT_API_URL"] + "/health")
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
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
    # one volume has one params.yaml, so the next run waits
    prefect("work-pool", "set-concurrency-limit", POOL, "1")
    prefect("deploy", "--all")
    # it flags runs without updates
    subprocess.run([sys.executable, "infra/local/services.py", "make-automation"], check=True)


if __name__ == "__main__":
    main()
