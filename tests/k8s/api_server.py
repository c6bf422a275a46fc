"""The part of Kubernetes' API that Prefect's worker and its observer use.

It refuses what the Roles of the manifests do not allow.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Any

from aiohttp import web
from cluster_objects import Store, matches
from jobs import Job
from pods import Spec, new_object

KINDS = {"pods": ("", "Pod"), "jobs": ("batch", "Job"), "events": ("", "Event")}
DISCOVERED = {  # what kopf looks for at its start
    "v1": [("pods", "Pod", True), ("events", "Event", True), ("namespaces", "Namespace", False)],
    "batch/v1": [("jobs", "Job", True)],
    "apiextensions.k8s.io/v1": [("customresourcedefinitions", "CustomResourceDefinition", False)],
}
VERBS = ["create", "delete", "get", "list", "watch"]


def failure(status: int, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return web.json_response(body | {"message": message, "code": status}, status=status)


class Api:
    """Handlers of requests.

    Args:
        store: Objects of the namespace.
        namespace: The only namespace.
        rules: Rules of Roles by token of the service account that they are bound to.
        start_job: Called with the body of a new Job.
    """

    def __init__(
        self,
        store: Store,
        namespace: str,
        rules: dict[str, list[Spec]],
        start_job: Callable[[Spec], Job],
    ) -> None:
        self.store, self.namespace, self.rules = store, namespace, rules
        self.start_job = start_job
        self.jobs: dict[str, Job] = {}
        self.logs: Callable[[str, str], str]
        self.refused: list[str] = []
        self.watches: Counter[str] = Counter()  # begun, by what is watched
        self.deleting: set[asyncio.Task[None]] = set()
        self.application = web.Application(middlewares=[self._known])
        add = self.application.router.add_route
        add("GET", "/api", self._versions)
        add("GET", "/apis", self._groups)
        add("GET", "/api/v1", self._resources)
        add("GET", "/apis/{group}/v1", self._resources)
        for prefix in ("/api/v1", "/apis/batch/v1"):
            names = f"{prefix}/namespaces/{{namespace}}/{{plural}}"
            add("GET", names, self._list)
            add("POST", names, self._create)
            add("GET", f"{prefix}/{{plural}}", self._list)
            add("GET", f"{names}/{{name}}", self._read)
            add("DELETE", f"{names}/{{name}}", self._delete)
            add("GET", f"{names}/{{name}}/log", self._log)

    @web.middleware
    async def _known(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Refuse who is not known, and what the Roles of the manifests do not allow."""
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.rules:
            return failure(401, "Unauthorized")
        if plural := request.match_info.get("plural"):
            verb = {"POST": "create", "DELETE": "delete"}.get(request.method)
            verb = verb or ("get" if "name" in request.match_info else "list")
            verb = "watch" if request.query.get("watch") in ("1", "true") else verb
            resource = f"{plural}/log" if request.path.endswith("/log") else plural
            asked = (KINDS.get(plural, ("?", ""))[0], resource, verb)
            is_here = request.match_info.get("namespace") == self.namespace
            if not is_here or not any(allows(rule, *asked) for rule in self.rules[token]):
                self.refused.append(f"{verb} {resource}")
                return failure(403, f"forbidden: cannot {verb} {resource} at {request.path}")
        return await handler(request)

    async def _versions(self, _: web.Request) -> web.Response:
        return web.json_response({"kind": "APIVersions", "versions": ["v1"]})

    async def _groups(self, _: web.Request) -> web.Response:
        groups = []
        for name in list(DISCOVERED)[1:]:
            version = {"groupVersion": name, "version": "v1"}
            group = name.removesuffix("/v1")
            groups.append({"name": group, "versions": [version], "preferredVersion": version})
        return web.json_response({"kind": "APIGroupList", "groups": groups})

    async def _resources(self, request: web.Request) -> web.Response:
        group = request.match_info.get("group")
        known = DISCOVERED.get(f"{group}/v1" if group else "v1")
        if known is None:
            return failure(404, "not found")
        resources = [
            {
                "name": name,
                "singularName": kind.lower(),
                "namespaced": is_in,
                "kind": kind,
                "verbs": VERBS,
            }
            for name, kind, is_in in known
        ]
        return web.json_response({"kind": "APIResourceList", "resources": resources})

    async def _list(self, request: web.Request) -> web.StreamResponse:
        plural, selector = request.match_info["plural"], request.query.get("labelSelector", "")
        if request.query.get("watch") in ("1", "true"):
            return await self._watch(request, plural, selector)
        group, kind = KINDS[plural]
        body = {"kind": f"{kind}List", "apiVersion": f"{group}/v1".lstrip("/")}
        body["items"] = self.store.list(plural, selector)
        body["metadata"] = {"resourceVersion": str(self.store.version)}
        return web.json_response(body)

    async def _watch(self, request: web.Request, plural: str, selector: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self.watches[plural] += 1
        seen = int(request.query.get("resourceVersion") or self.store.version)
        while True:
            changes = await self.store.changes_after(seen)
            seen += len(changes)
            for name, kind, body in changes:
                if name == plural and matches(body, selector):
                    line = json.dumps({"type": kind, "object": body})
                    await response.write(line.encode() + b"\n")

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        if request.match_info["plural"] != "jobs":
            return failure(405, "only jobs can be created")
        name = f"{body['metadata'].pop('generateName')[:52]}{secrets.token_hex(3)}"
        created = new_object("Job", name, body, namespace=self.namespace)
        self.jobs[name] = self.start_job(created)
        return web.json_response(created, status=201)

    async def _read(self, request: web.Request) -> web.Response:
        known = self.store.objects[request.match_info["plural"]]
        found = known.get(request.match_info["name"])
        return web.json_response(found) if found else failure(404, "not found")

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.store.objects["jobs"]:
            return failure(404, f'jobs.batch "{name}" not found')
        is_foreground = request.query.get("propagationPolicy") == "Foreground"
        task = asyncio.create_task(self.jobs[name].delete(is_foreground))
        self.deleting.add(task)
        return web.json_response({"kind": "Status", "status": "Success"})

    async def _log(self, request: web.Request) -> web.Response:
        if request.query.get("previous") == "true":
            return failure(400, "previous terminated container not found")
        text = self.logs(request.match_info["name"], request.query["container"])
        lines = text.splitlines(keepends=True)[-int(request.query.get("tailLines", 1000)) :]
        return web.Response(text="".join(lines))


def allows(rule: Spec, group: str, resource: str, verb: str) -> bool:
    return group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
