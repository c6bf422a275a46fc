"""Pods as a kubelet runs them: volumes, init containers, containers, phases, grace and restarts."""

from __future__ import annotations

import asyncio
import copy
import shutil
import signal
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pod_container
from cluster_objects import Store
from pod_container import USER, Container, Image, Mount

Spec = dict[str, Any]
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
KILLED, RESTART_AFTER = 137, 2.0  # an exit code; seconds


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def new_object(kind: str, name: str, template: Spec, **metadata: Any) -> Spec:
    """An object with name, uid and time of creation, from a template with metadata and spec."""
    found = copy.deepcopy(template) | {"kind": kind}
    known = {"name": name, "uid": str(uuid.uuid4()), "creationTimestamp": now()}
    found["metadata"] = found.get("metadata", {}) | known | metadata
    return found


class Node:
    """What pods share: their image, volumes, and the ConfigMaps and Secrets of their namespace.

    Args:
        folder: Folder for volumes and logs.
        image: Root folder of containers.
        store: Objects of the cluster.
        data: Values of ConfigMaps and Secrets by (kind, name).
        tokens: Folders for ACCOUNT, by the name of the service account.
    """

    def __init__(
        self,
        folder: Path,
        image: Image,
        store: Store,
        data: dict[tuple[str, str], dict[str, str]],
        tokens: dict[str, Path],
    ) -> None:
        self.folder, self.image, self.store = folder, image, store
        self.data, self.tokens = data, tokens
        self.env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
        self.env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # of this machine

    def volume(self, name: str) -> Path:
        """A volume's folder, which belongs to the pods' group, as fsGroup asks."""
        return self.shared(self.folder / "volumes" / name)

    def shared(self, path: Path) -> Path:
        """Make a folder in which the pods' group may write."""
        if not path.exists():
            path.mkdir(parents=True)
            shutil.chown(path, group=int(USER))
            path.chmod(0o2777)
        return path

    def environment(self, container: Spec, namespace: str) -> dict[str, str]:
        """Return the variables of a container: those of `env` after those of `envFrom`.

        Raises:
            KeyError: for a value that does not exist and is not optional.
        """
        env: dict[str, str] = {}
        for source in container.get("envFrom", []):
            ((kind, ref),) = source.items()
            env |= self.data[kind.removesuffix("Ref"), ref["name"]]
        for each in container.get("env", []):
            if "valueFrom" not in each:
                env[each["name"]] = each.get("value") or ""
                continue
            ((kind, ref),) = each["valueFrom"].items()
            if kind == "fieldRef":
                env[each["name"]] = {"metadata.namespace": namespace}[ref["fieldPath"]]
                continue
            values = self.data.get((kind.removesuffix("KeyRef"), ref["name"]), {})
            if ref["key"] in values or not ref.get("optional"):
                env[each["name"]] = values[ref["key"]]
        return env

    def mounts(self, spec: Spec, container: Spec, pod: str) -> list[Mount]:
        """Return the mounts of a container: volumes, and the token of its service account."""
        volumes = {each["name"]: each for each in spec.get("volumes", [])}
        found = []
        for each in container.get("volumeMounts", []):
            volume, target, path = volumes[each["name"]], each["mountPath"], each.get("subPath", "")
            if volume.get("emptyDir", {}).get("medium") == "Memory":
                found.append(Mount(None, target, volume["emptyDir"]["sizeLimit"].rstrip("i")))
            elif "emptyDir" in volume:
                source = self.volume(f"{pod}/{each['name']}")
                found.append(Mount(self.shared(source / path), target))
            elif "persistentVolumeClaim" in volume:
                source = self.volume(volume["persistentVolumeClaim"]["claimName"])
                found.append(Mount(self.shared(source / path), target))
            else:
                source = self._files(volume["configMap"]["name"])
                found.append(Mount(source, target, is_read_only=True))
        if spec.get("automountServiceAccountToken", True):
            source = self.tokens[spec.get("serviceAccountName", "default")]
            found.append(Mount(source, ACCOUNT, is_read_only=True))
        return found

    def _files(self, name: str) -> Path:
        folder = self.folder / "config" / name
        folder.mkdir(parents=True, exist_ok=True)
        for key, text in self.data["configMap", name].items():
            (folder / key).write_text(text)
        return folder


class Pod:
    """A pod in the store, and the container that runs now.

    Args:
        node: Where it runs.
        body: The object, whose status this class keeps.
    """

    def __init__(self, node: Node, body: Spec) -> None:
        self.node, self.body, self.spec = node, body, body["spec"]
        self.name = body["metadata"]["name"]
        self.namespace = body["metadata"].get("namespace", "")
        self.container: Container | None = None
        self.is_stopping, self.is_gone = asyncio.Event(), asyncio.Event()
        self.statuses: dict[str, list[Spec]] = {
            "initContainerStatuses": [],
            "containerStatuses": [],
        }
        self._show("Pending")
        self.life = asyncio.create_task(self._live())

    def log(self, container: str) -> Path:
        return self.node.folder / "logs" / f"{self.name}.{container}.log"

    def text(self) -> str:
        """All logs."""
        return "".join(
            path.read_text() for path in sorted((self.node.folder / "logs").glob(f"{self.name}.*"))
        )

    @property
    def phase(self) -> str:
        return str(self.body["status"]["phase"])

    def delete(self) -> None:
        """Delete the pod as drains, preemption and job deletion do: SIGTERM, grace, SIGKILL."""
        if "deletionTimestamp" not in self.body["metadata"]:
            self.body["metadata"]["deletionTimestamp"] = now()
            self._show(self.phase)
            self.is_stopping.set()

    def kill(self) -> None:
        """Kill the container that runs, as the kernel does without memory."""
        assert self.container
        self.container.signal(signal.SIGKILL)

    def _show(self, phase: str) -> None:
        self.body["status"] = {
            "phase": phase,
            "startTime": self.body["metadata"]["creationTimestamp"],
        }
        self.body["status"] |= copy.deepcopy(self.statuses)
        self.node.store.put("pods", self.body)

    async def _live(self) -> None:
        (container,) = self.spec["containers"]
        parts = [("initContainerStatuses", each) for each in self.spec.get("initContainers", [])]
        code, is_kept = 0, self.spec.get("restartPolicy", "Always") == "Always"
        for kind, each in [*parts, ("containerStatuses", container)]:
            while not self.is_stopping.is_set():
                code = await self._run(kind, each)
                if not is_kept or (kind == "initContainerStatuses" and code == 0):
                    break
                await asyncio.sleep(RESTART_AFTER)
            if code or self.is_stopping.is_set():
                break
        never_ran = self.is_stopping.is_set() and not self.statuses["containerStatuses"]
        self._show("Failed" if code or never_ran else "Succeeded")
        await self.is_stopping.wait()
        self.node.store.remove("pods", self.body)
        self.is_gone.set()

    async def _run(self, kind: str, container: Spec) -> int:
        """Run a container to its end, and return its exit code."""
        name, started = container["name"], now()
        log = self.log(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        self.container = await pod_container.start(
            self.node.image,
            [*container.get("command", []), *container.get("args", [])],
            self.node.env | self.node.environment(container, self.namespace),
            container.get("workingDir", "/workspace"),
            mounts=self.node.mounts(self.spec, container, self.name),
            log=log,
        )
        statuses = [each for each in self.statuses[kind] if each["name"] != name]
        state: Spec = {"running": {"startedAt": started}}
        self.statuses[kind] = [*statuses, {"name": name, "restartCount": 0, "state": state}]
        self._show("Running" if kind == "containerStatuses" else "Pending")
        stopper = asyncio.create_task(self._stop(self.container))
        code = await self.container.wait()
        stopper.cancel()
        self.container = None
        reason = "Completed" if code == 0 else "Error"
        ended = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now()}
        self.statuses[kind][-1]["state"] = {"terminated": ended}
        self._show(self.phase)
        return code

    async def _stop(self, container: Container) -> None:
        await self.is_stopping.wait()
        container.signal(signal.SIGTERM)
        await asyncio.sleep(self.spec.get("terminationGracePeriodSeconds", 30))
        container.signal(signal.SIGKILL)
