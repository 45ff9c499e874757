"""Replicas on nodes of a pool of another backend, each the node of a lease (decision 0117).

Nothing is sent to a node: it asks, and is answered with what shall be there. So a call here writes that down, or
reads what the node reported last.
"""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from services.serving_controller.clients import guard
from services.serving_controller.clients.backend import EngineFacts, ReplicaSpec, ReplicaStatus
from services.serving_controller.clients.keys import ReplicaKeys
from services.serving_controller.model import NodeRecord, Servable, is_candidate
from services.serving_controller.protocol import EngineOptions, FileProblem, ModelFolder, ReplicaStart
from shared.errors import CorruptObject, StorageUnavailable
from shared.log import get_logger
from shared.model_files.tensors import BadModel

log = get_logger(__name__)

END_SECONDS = 20.0
"""Longest wait for a node's word that nothing of its replica runs. One that is silent has lost its lease: the cluster
backend ends it, and the replica ends itself when the time is over that was confirmed last."""
END_POLL_SECONDS = 0.5


class NodeRecords(Protocol):
    """What is known of replicas' nodes."""

    async def find(self, replica_id: str) -> NodeRecord | None: ...

    async def list(self) -> list[NodeRecord]: ...

    async def save_order(self, record: NodeRecord) -> None:
        """Write folders and start of the record, unless the replica has another node meanwhile."""

    async def forget_ended(self) -> None:
        """Forget nodes whose lease was given back."""


class PoolBackend:
    """ReplicaBackend and ReplicaFiles of the nodes of leases."""

    has_nodes = True

    def __init__(self, records: NodeRecords, keys: ReplicaKeys, *, engine: EngineOptions) -> None:
        self._records = records
        self._keys = keys
        self._engine = engine

    async def engine(self, replica_id: str) -> EngineFacts | None:
        record = await self._records.find(replica_id)
        if record is None or not record.report.engine:
            return None
        return EngineFacts(record.report.engine, record.report.device)

    async def start(self, spec: ReplicaSpec) -> None:
        record = await self._records.find(spec.replica_id)
        assert record is not None, "its model is on the node, so the node has reported"
        digests = await asyncio.to_thread(self._keys.renew, spec.replica_id)
        start = ReplicaStart(
            incarnation=spec.incarnation,
            served_name=spec.served_name,
            model_dir=str(spec.model_dir),
            max_lora_rank=spec.max_lora_rank,
            adapter_layers=spec.adapter_layers,
            inference_key_sha256=digests[guard.INFERENCE_DIGEST],
            management_key_sha256=digests[guard.MANAGEMENT_DIGEST],
            engine=self._engine,
        )
        await self._records.save_order(replace(record, start=start))

    async def extend(self, replica_id: str, seconds: float) -> None:
        """Do nothing: each answer to the node says for how long its lease is confirmed."""

    async def inspect(self, replica_id: str) -> ReplicaStatus | None:
        record = await self._records.find(replica_id)
        if record is None or record.start is None:
            return None
        is_known = record.report.incarnation == record.start.incarnation
        return ReplicaStatus(
            replica_id,
            record.start.incarnation,
            record.report.url if is_known else "",
            is_alive=record.is_alive and self._keys.has(replica_id),
        )

    async def list_owned(self) -> list[str]:
        return [record.replica_id for record in await self._records.list() if record.start is not None]

    async def end(self, replica_id: str) -> None:
        record = await self._records.find(replica_id)
        if record is None or record.start is None:
            return
        await self._records.save_order(replace(record, start=None, folders=()))
        deadline = time.monotonic() + END_SECONDS
        while record is not None and record.report.is_alive:
            if time.monotonic() > deadline:
                log.warning("node does not say that its replica has ended", replica_id=replica_id)
                return
            await asyncio.sleep(END_POLL_SECONDS)
            record = await self._records.find(replica_id)

    def key(self, replica_id: str) -> str:
        return self._keys.inference(replica_id)

    def management_key(self, replica_id: str) -> str:
        return self._keys.management(replica_id)

    async def log_tail(self, replica_id: str) -> str:
        record = await self._records.find(replica_id)
        if record is not None and not self._keys.has(replica_id):
            return "its keys are not on this machine"
        return record.report.log_tail if record and record.report.log_tail else "its node reported no log"

    async def model(self, replica_id: str, base_sha: str, full: Servable | None) -> Path | None:
        digest, kind = (full.digest, "full") if full else (base_sha, "base")
        wish = ModelFolder(folder_id=uuid4().hex, kind=kind, digest=digest, base_sha=base_sha)
        return await self._path(replica_id, wish)

    async def adapter(self, replica_id: str, servable: Servable) -> Path | None:
        wish = ModelFolder(
            folder_id=uuid4().hex,
            kind="candidate" if is_candidate(servable.served_name) else "adapter",
            digest=servable.digest,
            base_sha=servable.base_sha,
            rank=servable.rank,
        )
        return await self._path(replica_id, wish)

    async def remove_adapter(self, replica_id: str, served_name: str) -> None:
        kind, digest = _kind_of(served_name), served_name.rpartition("@")[2]
        record = await self._records.find(replica_id)
        if record is not None:
            kept = tuple(each for each in record.folders if (each.kind, each.digest) != (kind, digest))
            await self._records.save_order(replace(record, folders=kept))

    async def keep_only(self, *, bases: object, models: object) -> None:
        """Forget nodes that went; files of models go with their node."""
        await self._records.forget_ended()

    async def _path(self, replica_id: str, wish: ModelFolder) -> Path | None:
        """Return the folder's path on the node; None where its files are not there yet."""
        record = await self._records.find(replica_id)
        if record is None:
            return None
        folder = next((each for each in record.folders if _is_same(each, wish)), None)
        if folder is None:
            await self._records.save_order(replace(record, folders=(*record.folders, wish)))
            return None
        state = record.state_of(folder)
        if state.problem is not None:
            # The next wish is another one, which the node tries again.
            others = tuple(each for each in record.folders if each != folder)
            await self._records.save_order(replace(record, folders=others))
            raise _error(state.problem, f"{replica_id}: {state.message}")
        return Path(state.path) if state.path else None


def _kind_of(served_name: str) -> str:
    return "candidate" if is_candidate(served_name) else "adapter"


def _is_same(folder: ModelFolder, wish: ModelFolder) -> bool:
    return (folder.kind, folder.digest) == (wish.kind, wish.digest)


def _error(problem: FileProblem, message: str) -> Exception:
    match problem:
        case FileProblem.AWAY:
            return StorageUnavailable(message)
        case FileProblem.MISSING:
            return KeyError(message)
        case FileProblem.BAD_MODEL:
            return BadModel(message)
        case FileProblem.CORRUPT:
            return CorruptObject(message)
