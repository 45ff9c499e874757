"""`python -m deploy.kubernetes.kubelet KUBECONFIG NODE FOLDER`: a small kubelet that runs pods as processes.

It keeps what a backend relies on: the node's lease, the phase of each pod and its container's exit code, SIGTERM and
the grace of a deletion, and that a pod's object goes away only after its processes. It knows one container per pod,
environment by value, field, secret and ConfigMap, startup and readiness probes by HTTP, and volumes as folders: of
the pod, of all pods that have the claim, or with the files of a ConfigMap or a secret. A path of the environment that
lies in a volume is replaced by that of its folder, since a process sees the machine's files. The image of every pod
is this machine with its Python. Liveness probes, hooks and limits it passes over, and it starts no container again.
"""

import asyncio
import base64
import json
import os
import re
import signal
import ssl
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from shared.files import write_whole
from shared.processes.ending import kill_all
from shared.processes.environment import inherited
from shared.processes.identity import Identity, marked

LEASE_SECONDS = 1.0
KILL_SECONDS = 10.0
RETRY_SECONDS = 0.2
NOT_YET = frozenset({401, 403, 429, 500, 503, 504})
ADDRESS = "127.0.0.1"
CAPACITY = {"cpu": "8", "memory": "64Gi", "pods": "20", "nvidia.com/gpu": "8"}
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
PATCH = "application/strategic-merge-patch+json"
MARK = "RETUNE_POD"
CLUSTER_MARK = "RETUNE_KUBERNETES"
"""Variable by which the cluster ends all that is left of it."""
PROBES = ("startupProbe", "readinessProbe")

Object = Mapping[str, Any]


class Api:
    """The API server, as KUBECONFIG has it."""

    def __init__(self, kubeconfig: Path) -> None:
        content = yaml.safe_load(kubeconfig.read_text())
        place = content["clusters"][0]["cluster"]
        self._server = place["server"]
        context = ssl.create_default_context(cafile=place["certificate-authority"])
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=0),
            headers={"Authorization": f"Bearer {content['users'][0]['user']['token']}"},
            timeout=aiohttp.ClientTimeout(total=None, connect=10),
        )

    async def ask(self, method: str, path: str, body: Object | None = None) -> tuple[int, Any]:
        """Return the status and the answer, once there is one: a server that starts forbids everything."""
        while True:
            with suppress(aiohttp.ClientError, TimeoutError, ValueError):
                status, answer = await self._ask(method, path, body)
                if status not in NOT_YET:
                    return status, answer
            await asyncio.sleep(RETRY_SECONDS)

    async def _ask(self, method: str, path: str, body: Object | None) -> tuple[int, Any]:
        headers = {"Content-Type": PATCH if method == "PATCH" else "application/json"}
        async with self._session.request(
            method, self._server + path, data=json.dumps(body), headers=headers
        ) as answer:
            return answer.status, await answer.json(content_type=None)

    async def lines(self, path: str) -> AsyncIterator[Any]:
        async with self._session.get(self._server + path) as answer:
            while line := await answer.content.readline():
                yield json.loads(line)

    async def close(self) -> None:
        await self._session.close()


class Pod:
    """A pod of this node, from its first sight to its end."""

    def __init__(self, api: Api, folder: Path, content: Object) -> None:
        self._api = api
        self._content = content
        self._uid = content["metadata"]["uid"]
        self._folder = folder / content["metadata"]["name"]
        self._path = (
            f"/api/v1/namespaces/{content['metadata']['namespace']}/pods/{content['metadata']['name']}"
        )
        self._container = content["spec"]["containers"][0]
        self._ends_at: float | None = None
        self._is_deleted = asyncio.Event()

    def see(self, content: Object) -> None:
        """Take in what became of the object; a deletion may come nearer, never later."""
        if content["metadata"].get("deletionTimestamp"):
            ends_at = time.monotonic() + content["metadata"].get("deletionGracePeriodSeconds", 0)
            self._ends_at = min(ends_at, self._ends_at or ends_at)
            self._is_deleted.set()

    def gone(self) -> None:
        """Take in that the object was removed, which ends the container at once."""
        self._ends_at = time.monotonic()
        self._is_deleted.set()

    async def run(self) -> None:
        self.see(self._content)
        is_over = self._content["status"].get("phase") in {"Succeeded", "Failed"}
        if not is_over and self._content["status"].get("containerStatuses"):
            await self._clear()
            await self._report(
                "Failed", _ended(137, "ContainerStatusUnknown")
            )  # of a kubelet before this one
        elif not is_over and not self._is_deleted.is_set():
            await self._run_container()
        elif not is_over:
            await self._report("Failed", {"waiting": {"reason": "ContainerCreating"}})
        await self._is_deleted.wait()
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self._uid}}
        await self._api.ask("DELETE", self._path, body)

    async def _run_container(self) -> None:
        try:
            process = await self._start()
        except OSError as error:
            await self._report("Failed", _ended(128, "StartError", str(error)))
            return
        running = {"running": {"startedAt": _now()}}
        await self._report("Running", running, is_ready=not any(name in self._container for name in PROBES))
        probing = asyncio.create_task(self._follow_probes(running))
        code = await self._followed(process)
        probing.cancel()
        await asyncio.wait({probing})
        await self._clear()
        await self._report("Failed" if code else "Succeeded", _ended(code, "Error" if code else "Completed"))

    async def _follow_probes(self, running: Object) -> None:
        """Report whether the container is ready, whenever that changes: first it has to start."""
        probes = [self._container[name] for name in PROBES if name in self._container]
        was_ready = False
        while probes:
            answered = await self._answers(probes[0])
            if answered and len(probes) > 1:
                del probes[0]
                continue
            if answered != was_ready:
                await self._report("Running", running, is_ready=answered)
            was_ready = answered
            await asyncio.sleep(probes[0]["periodSeconds"])

    async def _answers(self, probe: Object) -> bool:
        """Whether what the probe asks for is there; it asks once."""
        asked = probe["httpGet"]
        ports = {port["name"]: port["containerPort"] for port in self._container.get("ports", ())}
        url = f"http://{ADDRESS}:{ports.get(asked['port'], asked['port'])}{asked['path']}"
        try:
            async with aiohttp.request(
                "GET", url, timeout=aiohttp.ClientTimeout(probe["timeoutSeconds"])
            ) as answer:
                return answer.ok
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _followed(self, process: Process) -> int:
        """Wait for the container's end; on a deletion ask for it, and at the end of the grace kill."""
        ended, deleted = asyncio.create_task(process.wait()), asyncio.create_task(self._is_deleted.wait())
        await asyncio.wait({ended, deleted}, return_when=asyncio.FIRST_COMPLETED)
        deleted.cancel()
        if not ended.done():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        while not ended.done():
            await asyncio.wait({ended}, timeout=0.05)
            if not ended.done() and self._ends_at is not None and time.monotonic() >= self._ends_at:
                process.kill()
                break
        code = await ended
        return code if code >= 0 else 128 - code

    async def _start(self) -> Process:
        environment = await self._environment()
        argv = [
            _expanded(word, environment)
            for word in (*self._container.get("command", ()), *self._container.get("args", ()))
        ]
        self._folder.mkdir(parents=True, exist_ok=True)
        await self._write_files()
        with (self._folder / "log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *argv,
                env={**environment, MARK: self._uid},
                cwd=self._folder,
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _environment(self) -> dict[str, str]:
        environment = dict(inherited(CLUSTER_MARK))
        environment["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), environment.get("PATH", "")))
        for source in self._container.get("envFrom", ()):
            if "secretRef" in source:
                environment |= await self._secret(source["secretRef"]["name"])
            else:
                environment |= await self._config_map(source["configMapRef"]["name"])
        for entry in self._container.get("env", ()):
            value = entry.get("value")
            if value is None and "fieldRef" in entry.get("valueFrom", {}):
                value = self._field(entry["valueFrom"]["fieldRef"]["fieldPath"])
            elif value is None:
                reference = entry["valueFrom"]["secretKeyRef"]
                value = (await self._secret(reference["name"])).get(reference["key"])
                if value is None and reference.get("optional"):
                    continue
                if value is None:
                    raise FileNotFoundError(f"secret {reference['name']} has no key {reference['key']}")
            environment[entry["name"]] = self._in_volume(_expanded(value, environment), environment)
        return environment

    async def _write_files(self) -> None:
        """Write the files of ConfigMaps and secrets into their volumes."""
        for volume in self._content["spec"].get("volumes", ()):
            files: Mapping[str, str] = {}
            if "configMap" in volume:
                files = await self._config_map(volume["configMap"]["name"])
            elif "secret" in volume:
                files = await self._secret(volume["secret"]["secretName"])
            for name, text in files.items():
                write_whole(self._volume(volume["name"]) / name, text)

    def _volume(self, name: str) -> Path:
        """Return the folder of a volume: that of a claim is everybody's who has it, on any node."""
        volumes = {volume["name"]: volume for volume in self._content["spec"].get("volumes", ())}
        claim = volumes.get(name, {}).get("persistentVolumeClaim")
        cluster = self._folder.parents[1]
        folder: Path = cluster / "claims" / claim["claimName"] if claim else self._folder / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    async def _secret(self, name: str) -> dict[str, str]:
        data = await self._data("secrets", name)
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    async def _config_map(self, name: str) -> dict[str, str]:
        return dict(await self._data("configmaps", name))

    async def _data(self, kind: str, name: str) -> Mapping[str, str]:
        namespace = self._content["metadata"]["namespace"]
        status, answer = await self._api.ask("GET", f"/api/v1/namespaces/{namespace}/{kind}/{name}")
        if status >= 400:
            raise FileNotFoundError(f"{kind} {name}: {answer.get('message')}")
        return answer.get("data", {})  # type: ignore[no-any-return]

    def _field(self, path: str) -> str:
        if path in {"status.podIP", "status.hostIP"}:
            return ADDRESS
        if path == "spec.nodeName":
            return str(self._content["spec"]["nodeName"])
        kind, key = re.fullmatch(r"metadata\.(\w+)\['(.+)'\]", path).groups()  # type: ignore[union-attr]
        return str(self._content["metadata"].get(kind, {}).get(key, ""))

    def _in_volume(self, value: str, environment: Mapping[str, str]) -> str:
        for mount in self._container.get("volumeMounts", ()):
            place = mount["mountPath"]
            if value == place or value.startswith(f"{place}/"):
                within = _expanded(mount.get("subPathExpr", ""), environment)
                return f"{self._volume(mount['name']) / within}{value.removeprefix(place)}"
        return value

    async def _clear(self) -> None:
        """End what is left of the container."""
        left = await asyncio.to_thread(kill_all, self._processes, timeout_seconds=KILL_SECONDS)
        assert not left, f"processes {left} of {self._path} survive SIGKILL"

    def _processes(self) -> Iterator[Identity]:
        """Yield what a container would hold: what has the pod's mark, or works in its folder with another
        environment."""
        yield from marked(f"{MARK}={self._uid}")
        for path in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):  # gone, or somebody else's
                identity = Identity.of(int(path.parent.name))
                if identity is not None and path.readlink().is_relative_to(self._folder):
                    yield identity

    async def _report(self, phase: str, state: Object, *, is_ready: bool = False) -> None:
        container = {
            "name": self._container["name"],
            "image": self._container["image"],
            "imageID": "",
            "restartCount": 0,
            "ready": is_ready,
            "started": is_ready,
            "state": state,
        }
        ready = {"type": "Ready", "status": str(is_ready), "lastTransitionTime": _now()}
        status = {
            "phase": phase,
            "podIP": ADDRESS,
            "podIPs": [{"ip": ADDRESS}],
            "conditions": [ready],
            "containerStatuses": [container],
        }
        body = {"metadata": {"uid": self._uid}, "status": status}
        await self._api.ask("PATCH", f"{self._path}/status", body)


class Kubelet:
    def __init__(self, api: Api, node: str, folder: Path) -> None:
        self._api = api
        self._node = node
        self._folder = folder
        self._pods: dict[str, Pod] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        await self._register()
        await asyncio.gather(self._renew_lease(), self._follow_pods())

    async def _register(self) -> None:
        metadata = {"name": self._node, "labels": {"kubernetes.io/hostname": self._node}}
        await self._api.ask("POST", "/api/v1/nodes", {"metadata": metadata})
        lease = {"metadata": {"name": self._node}, "spec": {"holderIdentity": self._node}}
        await self._api.ask("POST", LEASES, lease)
        await self._renew()
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": _now()}
        status = {"capacity": CAPACITY, "allocatable": CAPACITY, "conditions": [ready]}
        await self._api.ask("PATCH", f"/api/v1/nodes/{self._node}/status", {"status": status})

    async def _renew_lease(self) -> None:
        while True:
            await self._renew()
            await asyncio.sleep(LEASE_SECONDS)

    async def _renew(self) -> None:
        body = {"spec": {"renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
        await self._api.ask("PATCH", f"{LEASES}/{self._node}", body)

    async def _follow_pods(self) -> None:
        while True:
            with suppress(aiohttp.ClientError, TimeoutError, ValueError):
                await self._follow_once()
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow_once(self) -> None:
        mine = f"fieldSelector=spec.nodeName%3D{self._node}"
        _, pods = await self._api.ask("GET", f"/api/v1/pods?{mine}")
        for pod in pods["items"]:
            self._see(pod)
        version = pods["metadata"]["resourceVersion"]
        async for event in self._api.lines(f"/api/v1/pods?{mine}&watch=true&resourceVersion={version}"):
            if event["type"] in {"ADDED", "MODIFIED"}:
                self._see(event["object"])
            elif event["type"] == "DELETED" and (pod := self._pods.get(event["object"]["metadata"]["uid"])):
                pod.gone()
            elif event["type"] == "ERROR":
                return

    def _see(self, content: Object) -> None:
        uid = content["metadata"]["uid"]
        if uid in self._pods:
            self._pods[uid].see(content)
            return
        self._pods[uid] = pod = Pod(self._api, self._folder, content)
        task = asyncio.create_task(pod.run())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            print(f"a pod was not followed to its end: {type(error).__name__}: {error}", file=sys.stderr)


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda match: environment.get(match[1], match[0]), text)


def _ended(code: int, reason: str, message: str = "") -> Object:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": _now()}}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def _main(kubeconfig: Path, node: str, folder: Path) -> None:
    api = Api(kubeconfig)
    try:
        await Kubelet(api, node, folder).run()
    finally:
        await api.close()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]).resolve()))
