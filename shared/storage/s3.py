"""Objects in S3 by boto3, whose calls run off the event loop."""

import asyncio
import base64
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, SSLError

from shared.errors import Conflict, CorruptObject, StorageUnavailable
from shared.failpoints import failpoint
from shared.settings import ServiceSettings
from shared.storage.objects import (
    CHUNK_BYTES,
    MAX_BYTES_IN_MEMORY,
    MULTIPART_BYTES,
    ObjectHead,
    require_content,
    require_length,
)
from shared.storage.signing import SIGNATURE, StoreClock
from shared.tls import CA_FILE

Result = TypeVar("Result")


class S3ObjectStore:
    """An ObjectStore on boto3. The threads in which its calls run share one client."""

    def __init__(
        self,
        endpoint: str,
        access_key: str,
        secret_key: str,
        *,
        bucket: str,
        ca_file: Path | None = None,
    ) -> None:
        """ca_file: authorities that the server is verified with; None: those of botocore."""
        self._bucket = bucket
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=endpoint or None,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            region_name="us-east-1",
            verify=str(ca_file) if ca_file else None,
            config=Config(
                signature_version=SIGNATURE,
                s3={"addressing_style": "path"},
                retries={"mode": "standard", "max_attempts": 4},
                connect_timeout=5,
                read_timeout=30,
                max_pool_connections=20,
            ),
        )
        StoreClock().install(self._client)

    @classmethod
    def from_settings(cls, settings: ServiceSettings) -> "S3ObjectStore":
        secret = settings.s3_secret_key.get_secret_value()
        return cls(
            settings.s3_endpoint,
            settings.s3_access_key,
            secret,
            bucket=settings.s3_bucket,
            ca_file=settings.tls.ca_file,
        )

    async def put_file(self, key: str, path: Path, *, sha256: str) -> None:
        await self._call(self._put_file, key, path, sha256)
        failpoint("s3.part.sent")

    async def put_bytes(self, key: str, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        await self._call(self._put, key, data, digest)
        return digest

    async def get_file(self, key: str, path: Path, *, sha256: str, size_bytes: int) -> None:
        await self._call(self._get_file, key, path, sha256, size_bytes)

    async def get_bytes(
        self, key: str, *, sha256: str | None = None, limit_bytes: int = MAX_BYTES_IN_MEMORY
    ) -> bytes:
        return await self._call(self._get_bytes, key, sha256, limit_bytes)

    async def get_range(self, key: str, start: int, stop: int) -> bytes:
        return await self._call(self._get_range, key, start, stop)

    async def verify(self, key: str, *, sha256: str, size_bytes: int) -> None:
        await self._call(self._verify, key, sha256, size_bytes)

    async def head(self, key: str) -> ObjectHead | None:
        return await self._call(self._head, key)

    async def list_objects(self, prefix: str) -> list[ObjectHead]:
        return await self._call(self._list, prefix)

    async def delete(self, keys: Iterable[str]) -> None:
        await self._call(self._delete, list(keys))

    async def copy(self, source: str, target: str, *, sha256: str) -> None:
        await self._call(self._copy, source, target, sha256)

    async def _call(self, function: Callable[..., Result], *args: object) -> Result:
        """Run the function in a thread and translate botocore's errors into ours."""
        try:
            return await asyncio.to_thread(function, *args)
        except ClientError as error:
            raise _translated(error, args[0]) from error
        except SSLError as error:
            raise StorageUnavailable(f"{args[0]}: {error}; {CA_FILE} names who is trusted") from error
        except BotoCoreError as error:
            raise StorageUnavailable(f"{args[0]}: {error}") from error

    def _put_file(self, key: str, path: Path, sha256: str) -> None:
        if path.stat().st_size > MULTIPART_BYTES:
            self._put_large(key, path, sha256)
        else:
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() != sha256:
                raise CorruptObject(f"{path.name} changed on disk before it was stored as {key}")
            self._put(key, data, sha256)

    def _put(self, key: str, data: bytes, sha256: str) -> None:
        try:
            self._client.put_object(
                Bucket=self._bucket,
                Key=key,
                Body=data,
                IfNoneMatch="*",
                ChecksumSHA256=_base64(sha256),
                Metadata={"sha256": sha256},
            )
        except ClientError as error:
            self._accept_same(error, key, sha256)

    def _put_large(self, key: str, path: Path, sha256: str) -> None:
        upload = self._client.create_multipart_upload(
            Bucket=self._bucket, Key=key, Metadata={"sha256": sha256}, ChecksumAlgorithm="SHA256"
        )["UploadId"]
        try:
            parts = self._send_parts(key, path, upload, sha256)
            self._client.complete_multipart_upload(
                Bucket=self._bucket,
                Key=key,
                UploadId=upload,
                IfNoneMatch="*",
                MultipartUpload={"Parts": parts},
            )
        except ClientError as error:
            self._abort(key, upload)
            self._accept_same(error, key, sha256)
        except BaseException:
            self._abort(key, upload)
            raise

    def _send_parts(self, key: str, path: Path, upload: str, sha256: str) -> list[dict[str, object]]:
        parts: list[dict[str, object]] = []
        whole = hashlib.sha256()
        with path.open("rb") as file:
            while data := file.read(MULTIPART_BYTES):
                whole.update(data)
                number = len(parts) + 1
                sent = self._client.upload_part(
                    Bucket=self._bucket,
                    Key=key,
                    UploadId=upload,
                    PartNumber=number,
                    Body=data,
                    ChecksumSHA256=base64.b64encode(hashlib.sha256(data).digest()).decode(),
                )
                parts.append(
                    {"ETag": sent["ETag"], "PartNumber": number, "ChecksumSHA256": sent["ChecksumSHA256"]}
                )
        if whole.hexdigest() != sha256:
            raise CorruptObject(f"{path.name} changed on disk while it was stored as {key}")
        return parts

    def _abort(self, key: str, upload: str) -> None:
        self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)

    def _accept_same(self, error: ClientError, key: str, sha256: str) -> None:
        """Accept an existing key with the same bytes; raise the error, StorageUnavailable or Conflict otherwise."""
        if _code(error) not in {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}:
            raise error
        head = self._head(key)
        if head is None:
            raise StorageUnavailable(f"{key}: another write is under way") from error
        if head.sha256 != sha256:
            raise Conflict(f"{key} exists with sha256 {head.sha256}, tried to write {sha256}") from error

    def _get_range(self, key: str, start: int, stop: int) -> bytes:
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=key, Range=f"bytes={start}-{stop - 1}")
        except ClientError as error:
            if _code(error) != "InvalidRange":
                raise
            raise CorruptObject(f"{key}: is shorter than {start} bytes, expected {stop} or more") from error
        data: bytes = answer["Body"].read()
        return require_length(key, data, start, stop)

    def _get_file(self, key: str, path: Path, sha256: str, size_bytes: int) -> None:
        body = self._client.get_object(Bucket=self._bucket, Key=key)["Body"]
        partial = path.with_name(f".{path.name}.{uuid4().hex}")
        digest, size = hashlib.sha256(), 0
        try:
            with partial.open("wb") as file:
                for chunk in body.iter_chunks(CHUNK_BYTES):
                    digest.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
            require_content(key, digest.hexdigest(), size, sha256=sha256, size_bytes=size_bytes)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def _verify(self, key: str, sha256: str, size_bytes: int) -> None:
        digest, size = hashlib.sha256(), 0
        for chunk in self._client.get_object(Bucket=self._bucket, Key=key)["Body"].iter_chunks(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
        require_content(key, digest.hexdigest(), size, sha256=sha256, size_bytes=size_bytes)

    def _get_bytes(self, key: str, sha256: str | None, limit_bytes: int) -> bytes:
        answer = self._client.get_object(Bucket=self._bucket, Key=key)
        if answer["ContentLength"] > limit_bytes:
            raise CorruptObject(f"{key} has {answer['ContentLength']} bytes, expected at most {limit_bytes}")
        data: bytes = answer["Body"].read()
        if sha256 is not None:
            digest, size = hashlib.sha256(data).hexdigest(), answer["ContentLength"]
            require_content(key, digest, len(data), sha256=sha256, size_bytes=size)
        return data

    def _head(self, key: str) -> ObjectHead | None:
        try:
            answer = self._client.head_object(Bucket=self._bucket, Key=key)
        except ClientError as error:
            if _code(error) in {"404", "NoSuchKey", "NotFound"}:
                return None
            raise
        return ObjectHead(key, answer["ContentLength"], answer["Metadata"].get("sha256"))

    def _list(self, prefix: str) -> list[ObjectHead]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        return [
            ObjectHead(entry["Key"], entry["Size"], None)
            for page in pages
            for entry in page.get("Contents", ())
        ]

    def _delete(self, keys: "Sequence[str]") -> None:
        for key in keys:
            self._client.delete_object(Bucket=self._bucket, Key=key)
            failpoint("gc.deleted")

    def _copy(self, source: str, target: str, sha256: str) -> None:
        if self._head(target) is not None:
            return self._accept_existing(target, sha256)
        body = self._client.get_object(Bucket=self._bucket, Key=source)["Body"]
        scratch = Path(tempfile.gettempdir()) / f"copy-{uuid4().hex}"
        try:
            with scratch.open("wb") as file:
                for chunk in body.iter_chunks(CHUNK_BYTES):
                    file.write(chunk)
            return self._put_file(target, scratch, sha256)
        finally:
            scratch.unlink(missing_ok=True)

    def _accept_existing(self, key: str, sha256: str) -> None:
        head = self._head(key)
        if head is None or head.sha256 != sha256:
            raise Conflict(f"{key} exists with other bytes than sha256 {sha256}")


def _translated(error: ClientError, key: object) -> Exception:
    if _code(error) in {"404", "NoSuchKey", "NotFound"}:
        return KeyError(key)
    return StorageUnavailable(f"{key}: {error}")


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _base64(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()
