"""infra/k8s without a cluster: schemas, hardening, the job template, shellcheck."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import kubernetes_validate
import pytest
import yaml
from conftest import ROOT
from prefect.utilities.templating import apply_values, find_placeholders

from dopsd.core.processes import SAVING

pytestmark = pytest.mark.full

INFRA = ROOT / "infra"
K8S = INFRA / "k8s"
BASE, OVERLAYS = K8S / "base", sorted((K8S / "overlays").iterdir())
KUBERNETES = "1.30"  # the oldest version that these manifests are for
# in the pod's spec, where Kubernetes ignores them
PREFECT_WANTS = {"parallelism": 1, "completions": 1}
GIVEN = {"image": "dopsd:cpu", "namespace": "dopsd", "name": "run", "labels": {}}
GIVEN |= {"command": "prefect flow-run execute"}


def resources() -> list[dict[str, Any]]:
    """Every document of base/ but kustomize's own and the patches, which are partial."""
    files = sorted(path for path in BASE.glob("*.yaml") if path.name != "kustomization.yaml")
    return [document for path in files for document in yaml.safe_load_all(path.read_text())]


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BASE / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def job_of(overlay: Path) -> dict[str, Any]:
    """The Job of a flow run, as the worker renders the template that deploy.py makes."""
    defaults = json.loads((overlay / "job-defaults.json").read_text())
    text = (BASE / "job-template.json").read_text()
    template = module("deploy").job_template(json.loads(text), defaults | GIVEN)
    properties = template["variables"]["properties"].items()
    values = {name: about["default"] for name, about in properties if "default" in about}
    job = apply_values(template["job_configuration"], values)["job_manifest"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["args"] = GIVEN["command"].split()  # the worker does this
    return job


def pods() -> dict[str, dict[str, Any]]:
    """The pod of every Deployment and of every overlay's runs."""
    found = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in resources()
        if each["kind"] == "Deployment"
    }
    return found | {
        f"run-{overlay.name}": job_of(overlay)["spec"]["template"]["spec"] for overlay in OVERLAYS
    }


def containers() -> dict[str, dict[str, Any]]:
    return {
        f"{pod}/{each['name']}": each
        for pod, spec in pods().items()
        for each in spec["containers"] + spec.get("initContainers", [])
    }


def test_every_resource_has_the_form_that_kubernetes_demands():
    assert len(resources()) > 10
    for each in resources():
        kubernetes_validate.validate(each, KUBERNETES, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_the_job_of_a_run_has_the_form_that_kubernetes_and_prefect_demand(overlay: Path):
    job = job_of(overlay)
    pod = job["spec"]["template"]["spec"]
    assert {name: pod.pop(name) for name in PREFECT_WANTS} == PREFECT_WANTS
    assert pod["restartPolicy"] == "Never" and pod["containers"][0]["name"] == "prefect-job"
    kubernetes_validate.validate(job, KUBERNETES, strict=True)
    assert not find_placeholders(job)
    assert job["spec"]["backoffLimit"] == 0 and "activeDeadlineSeconds" not in job["spec"]
    assert job["spec"]["podReplacementPolicy"] == "Failed"  # else a pod fails while it still saves


def test_the_job_template_uses_all_of_its_variables_and_no_other():
    template = json.loads((BASE / "job-template.json").read_text())
    used = {each.name for each in find_placeholders(template["job_configuration"])}
    assert used == template["variables"]["properties"].keys()


def test_a_default_for_a_variable_that_the_template_lacks_is_a_mistake():
    with pytest.raises(SystemExit, match="gpu: no such variable"):
        module("deploy").job_template({"variables": {"properties": {"gpus": {}}}}, {"gpu": 1})


def test_containers_run_without_root_and_without_privileges():
    for context in (spec["securityContext"] for spec in pods().values()):
        assert context["runAsNonRoot"] and context["runAsUser"] == 10001
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    safe = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    safe |= {"capabilities": {"drop": ["ALL"]}}
    for name, each in containers().items():
        assert each["securityContext"] == safe, name
        mounts = {mount["mountPath"] for mount in each["volumeMounts"]}
        assert mounts >= {"/tmp", "/home/dopsd"}, name


def test_only_the_worker_talks_to_kubernetes_and_services_do_not_name_the_settings_of_servers():
    assert "worker" in pods()
    for name, spec in pods().items():
        assert spec.get("automountServiceAccountToken", True) == (name == "worker"), name
        assert spec["enableServiceLinks"] is False, name  # MLFLOW_PORT would be tcp://...
    rules = [rule for each in resources() if each["kind"] == "Role" for rule in each["rules"]]
    allowed = {"jobs", "pods", "pods/log", "pods/status", "events"}
    assert {name for rule in rules for name in rule["resources"]} == allowed
    assert "*" not in {verb for rule in rules for verb in rule["verbs"]}


def test_passwords_come_from_the_secret_alone():
    asked = set()
    for name, each in containers().items():
        variables = each.get("env", [])
        plain = " ".join(env["name"] for env in variables if "value" in env)
        assert not re.search("KEY|TOKEN|PASSWORD|DATABASE", plain), name
        sources = [env.get("valueFrom", {}).get("secretKeyRef") for env in variables]
        secrets = {source["key"] for source in sources if source}
        assert name.startswith(("prefect/", "mlflow/")) or "DATABASE" not in " ".join(secrets), name
        asked |= secrets
    text = (BASE / "secret.example.env").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines and {line.removesuffix("=") for line in lines} == asked  # without values


def test_runs_have_time_to_save_before_they_are_killed():
    for name, spec in pods().items():
        if name.startswith("run-"):
            assert spec["terminationGracePeriodSeconds"] > module("run_flow").SAVING > SAVING
            assert spec["containers"][0]["command"] == ["python", "/opt/dopsd/run_flow.py"]


def test_a_pod_ends_after_what_the_flow_has_left_behind(tmp_path: Path):
    saved = tmp_path / "saved"
    guard = f"trap '' TERM; sleep 0.5; touch {saved}"
    flow = (
        f"setsid sh -c '{guard}' & trap 'exit 7' TERM; touch {tmp_path}/started; while :; do sleep"
        " 0.05; done"
    )
    pod = subprocess.Popen(
        [sys.executable, BASE / "run_flow.py", "sh", "-c", flow.replace("trap ''", 'trap ""')]
    )
    while not (tmp_path / "started").exists():
        time.sleep(0.02)
    pod.terminate()
    assert pod.wait(120) == 7
    assert saved.exists()


def test_a_signal_that_comes_before_the_flow_ends_the_flow_and_not_its_parent():
    """The first process of a container has no default handler; such a signal would be lost."""
    code = (
        f"import os, sys; sys.path.insert(0, {str(BASE)!r}); import run_flow;"
        " popen = run_flow.subprocess.Popen;"
        " run_flow.subprocess.Popen = lambda words: (os.kill(os.getpid(), 15), popen(words))[1];"
        " sys.exit(run_flow.main(['sleep', '600']))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 128 + 15


def test_a_pod_does_not_wait_forever():
    left_behind = "sleep 600 & echo $!; exit 3"
    script = (
        f"import run_flow, sys; sys.exit(run_flow.main(['sh', '-c', {left_behind!r}], saving=1))"
    )
    env, started = os.environ | {"PYTHONPATH": str(BASE)}, time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True
    ) as pod:
        sleeper = int(pod.stdout.readline())
        assert pod.wait(120) == 3 and time.monotonic() - started > 0.9
        os.kill(sleeper, signal.SIGKILL)  # it would have lived on


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_kustomize_puts_the_users_registry_everywhere(overlay: Path, tmp_path: Path):
    copy = shutil.copytree(K8S, tmp_path / "k8s")
    shutil.copyfile(copy / "base" / "secret.example.env", copy / "base" / "secret.env")
    kustomization = copy / "overlays" / overlay.name / "kustomization.yaml"
    text = kustomization.read_text()
    kustomization.write_text(text.replace("newName: dopsd", "newName: registry.example/dopsd"))
    built = subprocess.check_output(["kubectl", "kustomize", kustomization.parent], text=True)
    documents = list(yaml.safe_load_all(built))
    for each in documents:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    maps = [each for each in documents if each["kind"] == "ConfigMap"]
    (settings,) = (each["data"] for each in maps if each["metadata"]["name"] == "dopsd")
    tag = "cuda" if overlay.name == "gpu" else "cpu"
    assert settings["DOPSD_IMAGE"] == f"registry.example/dopsd:{tag}"
    assert built.count("image: ") == built.count("image: registry.example/dopsd:") == 6


def test_shellcheck_finds_nothing_in_the_scripts():
    scripts = sorted(path for path in INFRA.rglob("*") if path.suffix in (".sh", ".sbatch"))
    assert {"common.sh", "train.sbatch", "train-nodes.sbatch"} <= {path.name for path in scripts}
    command = ["shellcheck", "--external-sources", "--source-path=SCRIPTDIR/../..", *scripts]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
