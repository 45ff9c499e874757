"""What is asked of a Kubernetes API server: JSON by the paths of its resources, with errors that name them.

deploy/kubernetes/pools/role.yaml has the rights that this needs.
"""

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, ApiException, Configuration

from services.provisioner.backends.protocol import BackendFailed, NoCapacity

REQUEST_SECONDS = 30.0
LOGIN_SECONDS = 60.0
"""Time after which the kubeconfig is read again: its tokens may end."""
GANGS = "/apis/scheduling.k8s.io/v1alpha2"
NODES = "/api/v1/nodes"
NODES_PER_PAGE = 200
"""A node takes tens of kilobytes: the images that it has."""
NOT_FOUND = 404
CONFLICT = 409
FULL = "exceeded quota"

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

Object = Mapping[str, Any]


class Kubernetes:
    """One namespace of a cluster. `kubeconfig`: None inside of the cluster, as the account of the pod."""

    def __init__(self, kubeconfig: Path | None, context: str | None, namespace: str) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._namespace = namespace
        self._login: tuple[float, Configuration] | None = None
        self._has_gangs: bool | None = None

    async def create(self, kind: str, body: Object) -> bool:
        """Return False where the name exists. Raises NoCapacity where a quota has no room for it."""
        async with self._client() as client:
            return await _ask(client, "POST", self._path(kind), body, expected=CONFLICT) is not None

    async def get(self, kind: str, name: str) -> Object | None:
        async with self._client() as client:
            content: Object | None = await _ask(client, "GET", self._path(kind, name), expected=NOT_FOUND)
        return content

    async def list(self, selector: str, *kinds: str) -> list[list[Object]]:
        """Return the objects of each kind that have these labels."""
        async with self._client() as client:
            lists = [
                await _ask(client, "GET", self._path(kind), query={"labelSelector": selector})
                for kind in kinds
            ]
        return [each["items"] if each else [] for each in lists]

    async def patch(self, kind: str, name: str, body: Object, *, how: str = MERGE) -> bool:
        """Return False where there is no such object."""
        async with self._client() as client:
            path = self._path(kind, name)
            return await _ask(client, "PATCH", path, body, kind=how, expected=NOT_FOUND) is not None

    async def delete(self, kind: str, name: str, **options: Any) -> None:
        """Delete the object, with these options; nothing where there is none, or `uid` is of another one."""
        uid = options.pop("uid", None)
        body = options | ({"preconditions": {"uid": uid}} if uid else {})
        async with self._client() as client:
            await _ask(client, "DELETE", self._path(kind, name), body, expected=NOT_FOUND, also=CONFLICT)

    async def is_ready(self, node: str) -> bool:
        """Return whether the machine exists, and its kubelet is heard of."""
        async with self._client() as client:
            content = await _ask(client, "GET", f"{NODES}/{node}", expected=NOT_FOUND)
        conditions = content["status"].get("conditions", ()) if content else ()
        return any(each["type"] == "Ready" and each["status"] != "Unknown" for each in conditions)

    async def nodes(self, labels: Mapping[str, str]) -> AsyncIterator[Object]:
        """Yield the machines that have these labels."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        query = {"labelSelector": selector, "limit": str(NODES_PER_PAGE), "continue": ""}
        async with self._client() as client:
            while True:
                page = await _ask(client, "GET", NODES, query=query)
                for node in page["items"]:
                    yield node
                query["continue"] = page["metadata"].get("continue", "")
                if not query["continue"]:
                    return

    async def has_gangs(self) -> bool:
        """Return whether the cluster schedules all pods of a PodGroup or none."""
        if self._has_gangs is None:
            async with self._client() as client:
                content = await _ask(client, "GET", GANGS, expected=NOT_FOUND)
            resources = content["resources"] if content else ()
            self._has_gangs = any(each["name"] == "podgroups" for each in resources)
        return self._has_gangs

    def _path(self, kind: str, name: str = "") -> str:
        place = f"{_ROOTS[kind]}/namespaces/{self._namespace}/{kind}"
        return f"{place}/{name}" if name else place

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[ApiClient]:
        """Of one request or a few: a client that is kept would have to be closed."""
        try:
            configuration = await self._configuration()
        except (config.ConfigException, OSError, ValueError) as error:
            where = self._kubeconfig or "the account of this pod"
            message = f"no way to the Kubernetes API by {where}: {type(error).__name__}: {error}"
            raise BackendFailed(message) from error
        async with ApiClient(configuration) as client:
            yield client

    async def _configuration(self) -> Configuration:
        if self._login is None or time.monotonic() - self._login[0] > LOGIN_SECONDS:
            configuration = Configuration()
            if self._kubeconfig is None:
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                await config.load_kube_config(
                    config_file=str(self._kubeconfig),
                    context=self._context,
                    client_configuration=configuration,
                    persist_config=False,
                )
            self._login = time.monotonic(), configuration
        return self._login[1]


_ROOTS: Mapping[str, str] = {
    "configmaps": "/api/v1",
    "pods": "/api/v1",
    "secrets": "/api/v1",
    "jobs": "/apis/batch/v1",
    "podgroups": GANGS,
}


async def _ask(
    client: ApiClient,
    method: str,
    path: str,
    body: Object | None = None,
    *,
    query: Mapping[str, str] | None = None,
    kind: str = JSON,
    expected: int = 0,
    also: int = 0,
) -> Any:
    """Return the answer; None where its status is one of those that are expected."""
    try:
        return await client.call_api(
            path,
            method,
            query_params=list((query or {}).items()),
            header_params={"Accept": JSON, "Content-Type": kind},
            body=body,
            response_types_map=dict.fromkeys((200, 201, 202), "object"),
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            _request_timeout=REQUEST_SECONDS,
        )
    except ApiException as error:
        if error.status in {expected, also}:
            return None
        message = f"{method} {path}: {error.status} {_words(error)}"
        raise (NoCapacity if FULL in message else BackendFailed)(message) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise BackendFailed(f"{method} {path}: {type(error).__name__}: {error}") from error


def _words(error: ApiException) -> str:
    """Return what the server says."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)
