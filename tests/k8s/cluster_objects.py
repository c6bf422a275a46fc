"""Objects of the pretended cluster, with the versions and events that lists and watches need."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

Spec = dict[str, Any]


class Store:
    """Pods and Jobs by name, and every change to them."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Spec]] = {"pods": {}, "jobs": {}, "events": {}}
        self.changes: list[tuple[str, str, Spec]] = []  # plural, type, object as it was then
        self.changed = asyncio.Condition()
        self._waking: set[asyncio.Task[None]] = set()

    @property
    def version(self) -> int:
        return len(self.changes)

    def put(self, plural: str, body: Spec) -> None:
        """Create or change an object."""
        known = self.objects[plural]
        is_new = body["metadata"]["name"] not in known
        known[body["metadata"]["name"]] = body
        self._tell(plural, "ADDED" if is_new else "MODIFIED", body)

    def remove(self, plural: str, body: Spec) -> None:
        """Remove an object."""
        if self.objects[plural].pop(body["metadata"]["name"], None):
            self._tell(plural, "DELETED", body)

    def list(self, plural: str, selector: str) -> list[Spec]:
        """Return the objects whose labels a selector names."""
        return [each for each in self.objects[plural].values() if matches(each, selector)]

    async def changes_after(self, version: int) -> list[tuple[str, str, Spec]]:
        """Wait for changes after a version, and return them."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.version > version)
        return self.changes[version:]

    def _tell(self, plural: str, kind: str, body: Spec) -> None:
        body["metadata"]["resourceVersion"] = str(self.version + 1)
        self.changes.append((plural, kind, copy.deepcopy(body)))
        task = asyncio.get_running_loop().create_task(self._wake())
        self._waking.add(task)
        task.add_done_callback(self._waking.discard)

    async def _wake(self) -> None:
        async with self.changed:
            self.changed.notify_all()


def matches(body: Spec, selector: str) -> bool:
    """Whether an object's labels fulfil `name` and `name=value`, separated by commas."""
    labels = body["metadata"].get("labels") or {}
    for term in filter(None, selector.split(",")):
        name, sign, value = term.partition("=")
        if name not in labels or (sign and labels[name] != value):
            return False
    return True
