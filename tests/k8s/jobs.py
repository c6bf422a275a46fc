"""Jobs as Kubernetes' controller runs them, but with one pod at a time."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from pods import Node, Pod, Spec, new_object, now


class Job:
    """A Job in the store, and its pods.

    Args:
        node: Where its pods run.
        body: The object, whose status this class keeps.
    """

    def __init__(self, node: Node, body: Spec) -> None:
        self.node, self.body = node, body
        self.name, self.spec = body["metadata"]["name"], body["spec"]
        self.pods: list[Pod] = []
        self.failed = 0
        self._show(active=0)
        self.life = asyncio.create_task(self._live())

    def _show(self, *conditions: str, **status: Any) -> None:
        found = [
            {"type": each, "status": "True", "lastTransitionTime": now()} for each in conditions
        ]
        self.body["status"] = {"startTime": self.body["metadata"]["creationTimestamp"], **status}
        self.body["status"] |= {"failed": self.failed} if self.failed else {}
        self.body["status"] |= {"conditions": found} if found else {}
        self.node.store.put("jobs", self.body)

    async def _live(self) -> None:
        while True:
            pod = self._new_pod()
            self._show(active=1)
            await self._ended(pod)
            if pod.phase == "Succeeded":
                self._show("SuccessCriteriaMet", "Complete", succeeded=1, completionTime=now())
                break
            self.failed += 1
            if self.failed > self.spec.get("backoffLimit", 6):
                self._show("FailureTarget", active=0)
                pod.delete() if not is_over(pod) else None
                while not is_over(pod):
                    await asyncio.sleep(0.1)
                self._show("FailureTarget", "Failed", active=0)
                break
        if (ttl := self.spec.get("ttlSecondsAfterFinished")) is not None:
            await asyncio.sleep(ttl)
            await self.delete(is_foreground=False)

    def _new_pod(self) -> Pod:
        labels = {f"{prefix}job-name": self.name for prefix in ("", "batch.kubernetes.io/")}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self.name, "controller": True}
        body = new_object(
            "Pod",
            f"{self.name}-{secrets.token_hex(3)}",
            self.spec["template"],
            namespace=self.body["metadata"]["namespace"],
            ownerReferences=[owner | {"uid": self.body["metadata"]["uid"]}],
        )
        body["metadata"]["labels"] = (body["metadata"].get("labels") or {}) | labels
        self.pods.append(Pod(self.node, body))
        return self.pods[-1]

    async def _ended(self, pod: Pod) -> None:
        """Return when the controller counts a pod as succeeded or failed.

        A pod that is being deleted counts as failed at once, unless podReplacementPolicy is Failed.
        (Kubernetes: isPodFailed of pkg/controller/job/job_controller.go)
        """
        waits = self.spec.get("podReplacementPolicy") == "Failed"
        while not is_over(pod) and (waits or "deletionTimestamp" not in pod.body["metadata"]):
            await asyncio.sleep(0.05)

    async def delete(self, is_foreground: bool) -> None:
        """Delete the Job and its pods; in the foreground, the Job goes after its pods."""
        if asyncio.current_task() is not self.life:
            self.life.cancel()
        self.body["metadata"]["deletionTimestamp"] = now()
        if is_foreground:
            self.body["metadata"]["finalizers"] = ["foregroundDeletion"]
            self.node.store.put("jobs", self.body)
        else:
            self.node.store.remove("jobs", self.body)
        for pod in self.pods:
            pod.delete()
        for pod in self.pods:
            await pod.is_gone.wait()
        self.node.store.remove("jobs", self.body)


def is_over(pod: Pod) -> bool:
    return pod.phase in ("Succeeded", "Failed")
