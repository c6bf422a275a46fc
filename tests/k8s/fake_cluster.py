"""A pretended Kubernetes cluster that runs what kustomize makes: one node in its own network."""

from __future__ import annotations

import asyncio
import base64
import ctypes
import os
import secrets
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from api_server import Api
from cluster_objects import Store
from jobs import Job
from pod_container import PROGRAMS, Image
from pods import Node, Pod, Spec, new_object

NEW_NETWORK = 0x40000000  # CLONE_NEWNET
API, ADDRESS = "kubernetes.default.svc", ("127.0.0.1", 443)
BOUND = 900.0  # seconds after which a test gives up, on a loaded machine


def missing() -> str:
    """Return why there can be no cluster here, or nothing."""
    absent = [name for name in (*PROGRAMS, "kubectl", "git") if not shutil.which(name)]
    if absent:
        return f"{', '.join(absent)}: not installed"
    return "" if os.geteuid() == 0 else "only root can make namespaces and mounts"


class Cluster:
    """The cluster, in a thread of its own, whose sockets and processes are in a network of its own.

    Args:
        folder: A new folder for everything.
        overlay: Folder that `kubectl kustomize` reads; its secret.env exists.
    """

    def __init__(self, folder: Path, overlay: Path) -> None:
        built = subprocess.run(
            ["kubectl", "kustomize", overlay], capture_output=True, text=True, check=True
        )
        self.manifests: list[Spec] = list(yaml.safe_load_all(built.stdout))
        self.folder = folder
        folder.mkdir()
        self.loop = asyncio.new_event_loop()
        self.pods: dict[str, Pod] = {}
        self.outside: list[asyncio.subprocess.Process] = []
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.is_up, self.error = threading.Event(), None

    def of_kind(self, kind: str) -> list[Spec]:
        return [each for each in self.manifests if each["kind"] == kind]

    def start(self) -> None:
        self.thread.start()
        assert self.is_up.wait(BOUND)
        if self.error:
            raise self.error

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(BOUND)  # the end of the thread kills all processes

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the cluster."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(BOUND)

    def begin(self, *words: str) -> None:
        """Start a process that other machines stand for."""
        self.call(self._begin_process(*words))

    async def _begin_process(self, *words: str) -> None:
        alive = ("setpriv", "--pdeathsig=KILL", "unshare", "--pid", "--fork", "--kill-child", "--")
        log = (self.folder / "outside.log").open("a")
        process = await asyncio.create_subprocess_exec(*alive, *words, stdout=log, stderr=log)
        self.outside.append(process)

    def drain(self, pod: Pod) -> None:
        """Delete a pod as `kubectl drain` does."""
        self.loop.call_soon_threadsafe(pod.delete)

    def exec(self, pod: str, *words: str) -> str:
        """Run a command in a pod, as `kubectl exec`; it must succeed."""
        code, output = self.call(self.pods[pod].container.exec(*words))
        assert code == 0, output
        return output

    def fetch(self, url: str, body: object = None) -> Any:
        """Ask a service for JSON: GET, or POST with a body."""
        return self.call(self._fetch(url, body))

    async def _fetch(self, url: str, body: object) -> Any:
        url = url.replace("//prefect:", "//127.0.0.1:").replace("//mlflow:", "//127.0.0.1:")
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            method = "GET" if body is None else "POST"
            async with session.request(method, url, json=body) as response:
                return await response.json(content_type=None)

    def jobs_of(self, flow_run: str) -> list[Job]:
        """Return the Jobs of a flow run that exist, oldest first."""
        known = self.store.list("jobs", f"prefect.io/flow-run-id={flow_run}")
        return [self.api.jobs[each["metadata"]["name"]] for each in known]

    def deploy(self, name: str) -> None:
        """Start the pod of a Deployment, and wait until it is ready."""
        (found,) = [each for each in self.of_kind("Deployment") if each["metadata"]["name"] == name]
        template, unique = found["spec"]["template"], f"{name}-{secrets.token_hex(3)}"
        body = new_object("Pod", unique, template, namespace=self.namespace)
        (container,) = body["spec"]["containers"]
        probe, ports = container["readinessProbe"]["httpGet"], container["ports"]
        (port,) = [each["containerPort"] for each in ports if each["name"] == probe["port"]]
        self.pods[name] = self.call(self._new_pod(body))
        until(
            f"{name} is ready", lambda: self._answers(f"http://127.0.0.1:{port}{probe['path']}"), 1
        )

    def restart(self, name: str) -> None:
        """Replace the pod of a Deployment, as `kubectl rollout restart` with strategy Recreate."""
        self.drain(self.pods[name])
        until(f"{name} has ended", self.pods[name].is_gone.is_set)
        self.deploy(name)

    async def _new_pod(self, body: Spec) -> Pod:
        return Pod(self.node, body)

    def _answers(self, url: str) -> bool:
        try:
            self.call(self._status(url))
        except aiohttp.ClientError:
            return False
        return True

    async def _status(self, url: str) -> None:
        asking = aiohttp.ClientSession(raise_for_status=True)
        async with asking as session, session.get(url):
            pass

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "unshare of the network")
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            self.loop.run_until_complete(self._begin())
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.is_up.set()
        self.loop.run_forever()

    async def _begin(self) -> None:
        (space,) = self.of_kind("Namespace")
        self.namespace = space["metadata"]["name"]
        self.store = Store()
        services = [each["metadata"]["name"] for each in self.of_kind("Service")]
        image = Image(self.folder / "image", [*services, API])
        context = self._certificate()
        tokens, rules = self._accounts()
        self.node = Node(self.folder, image, self.store, self._data(), tokens)
        self.api = Api(self.store, self.namespace, rules, lambda body: Job(self.node, body))
        self.api.logs = lambda pod, name: (self.folder / "logs" / f"{pod}.{name}.log").read_text()
        runner = web.AppRunner(self.api.application, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, *ADDRESS, ssl_context=context).start()

    def _certificate(self) -> ssl.SSLContext:
        key, certificate = self.folder / "key.pem", self.folder / "ca.crt"
        words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        names = f"subjectAltName=DNS:{API},IP:{ADDRESS[0]}"
        out = ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=dopsd"]
        subprocess.run(
            ["openssl", *words.split(), *out, "-addext", names], check=True, capture_output=True
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context

    def _accounts(self) -> tuple[dict[str, Path], dict[str, list[Spec]]]:
        """Return a folder for each service account, and the rules bound to its token."""
        roles = {each["metadata"]["name"]: each["rules"] for each in self.of_kind("Role")}
        folders, rules = {}, {}
        for account in self.of_kind("ServiceAccount"):
            name = account["metadata"]["name"]
            folders[name] = folder = self.folder / "accounts" / name
            folder.mkdir(parents=True)
            shutil.copy(self.folder / "ca.crt", folder)
            (folder / "token").write_text(f"token-of-{name}")
            (folder / "namespace").write_text(self.namespace)
            bound = [
                each["roleRef"]["name"]
                for each in self.of_kind("RoleBinding")
                if {"kind": "ServiceAccount", "name": name}.items() <= each["subjects"][0].items()
            ]
            rules[f"token-of-{name}"] = [rule for role in bound for rule in roles[role]]
        return folders, rules

    def _data(self) -> dict[tuple[str, str], dict[str, str]]:
        maps = {
            ("configMap", each["metadata"]["name"]): each["data"]
            for each in self.of_kind("ConfigMap")
        }
        for each in self.of_kind("Secret"):
            values = {key: base64.b64decode(text).decode() for key, text in each["data"].items()}
            maps["secret", each["metadata"]["name"]] = values
        return maps


def until(what: str, holds: Callable[[], object], every: float = 0.3) -> Any:
    """Wait until something holds, and return it; the clock only ends what hangs."""
    end = time.monotonic() + BOUND
    while not (found := holds()):
        assert time.monotonic() < end, f"{what}: did not happen within {BOUND:.0f} s"
        time.sleep(every)
    return found
