"""A bucket in memory for unit tests; tests/integration/storage/test_objects.py runs on it and on S3."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from shared.errors import Conflict, CorruptObject
from shared.storage.objects import MAX_BYTES_IN_MEMORY, ObjectHead, require_length


class FakeObjectStore:
    """An ObjectStore that keeps its objects in a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def put_file(self, key: str, path: Path, *, sha256: str) -> None:
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise CorruptObject(f"{path.name} changed on disk before it was stored as {key}")
        await self.put_bytes(key, data)

    async def put_bytes(self, key: str, data: bytes) -> str:
        if self.objects.setdefault(key, data) != data:
            raise Conflict(f"{key} exists with other bytes")
        return hashlib.sha256(data).hexdigest()

    async def get_file(self, key: str, path: Path, *, sha256: str, size_bytes: int) -> None:
        data = await self.get_bytes(key, sha256=sha256)
        if len(data) != size_bytes:
            raise CorruptObject(f"{key}: found {len(data)} bytes, expected {size_bytes}")
        path.write_bytes(data)

    async def get_bytes(
        self, key: str, *, sha256: str | None = None, limit_bytes: int = MAX_BYTES_IN_MEMORY
    ) -> bytes:
        data = self.objects[key]
        if len(data) > limit_bytes:
            raise CorruptObject(f"{key} has {len(data)} bytes, expected at most {limit_bytes}")
        if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise CorruptObject(f"{key}: expected sha256 {sha256}")
        return data

    async def get_range(self, key: str, start: int, stop: int) -> bytes:
        return require_length(key, self.objects[key][start:stop], start, stop)

    async def verify(self, key: str, *, sha256: str, size_bytes: int) -> None:
        data = await self.get_bytes(key, sha256=sha256)
        if len(data) != size_bytes:
            raise CorruptObject(f"{key}: found {len(data)} bytes, expected {size_bytes}")

    async def head(self, key: str) -> ObjectHead | None:
        data = self.objects.get(key)
        return None if data is None else ObjectHead(key, len(data), hashlib.sha256(data).hexdigest())

    async def list_objects(self, prefix: str) -> list[ObjectHead]:
        keys = sorted(key for key in self.objects if key.startswith(prefix))
        return [ObjectHead(key, len(self.objects[key]), None) for key in keys]

    async def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    async def copy(self, source: str, target: str, *, sha256: str) -> None:
        data = self.objects[source]
        if hashlib.sha256(data).hexdigest() != sha256:
            raise CorruptObject(f"{source}: expected sha256 {sha256}")
        await self.put_bytes(target, data)
