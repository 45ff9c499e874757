"""One suite for the bucket in memory, the real one, and the real one by signed requests, so that none can drift."""

import asyncio
import hashlib
import shutil
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from botocore import auth

from schemas.artifacts import FileEntry
from schemas.object_requests import ObjectRequest, PresignedRequest
from shared.errors import Conflict, CorruptObject, StorageUnavailable
from shared.storage.objects import MULTIPART_BYTES, WriteOnceStore, fetch_files, sha256_of
from shared.storage.presigned import PresignedObjectStore
from shared.storage.presigner import Presigner, StoreTime
from shared.storage.s3 import S3ObjectStore
from shared.storage.testing import FakeObjectStore

pytestmark = pytest.mark.stack


class LocalSigner:
    """A Signer that has the key itself."""

    def __init__(self, stack, user: str) -> None:
        keys = stack.s3_credentials(user)
        self._presigner = Presigner(
            stack.s3_endpoint, keys.access_key, keys.secret_key, bucket=stack.s3_bucket
        )
        self._time = StoreTime(stack.s3_endpoint, ca_file=None)
        self.late = timedelta(0)
        """How long ago the requests were signed that are not fresh."""

    async def sign(self, asked: ObjectRequest, *, fresh: bool = False) -> PresignedRequest:
        now = await self._time.now()
        return self._presigner.sign(asked, at=now if fresh else now - self.late)


@pytest.fixture(params=["fake", "s3", "presigned"])
def objects(request: pytest.FixtureRequest) -> WriteOnceStore:
    if request.param == "fake":
        return FakeObjectStore()
    stack = request.getfixturevalue("stack")
    if request.param == "presigned":
        return PresignedObjectStore(LocalSigner(stack, "registry"))
    return s3_as(stack, "registry")


def s3_as(stack, user: str) -> S3ObjectStore:
    keys = stack.s3_credentials(user)
    return S3ObjectStore(stack.s3_endpoint, keys.access_key, keys.secret_key, bucket=stack.s3_bucket)


def new_key() -> str:
    return f"models/{uuid4().hex}"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_what_is_put_is_got_with_its_sha256(objects, tmp_path: Path):
    key = new_key()
    assert await objects.put_bytes(key, b"weights") == digest(b"weights")
    assert await objects.get_bytes(key, sha256=digest(b"weights")) == b"weights"
    await objects.get_file(key, tmp_path / "file", sha256=digest(b"weights"), size_bytes=7)
    assert (tmp_path / "file").read_bytes() == b"weights"
    head = await objects.head(key)
    assert (head.size_bytes, head.sha256) == (7, digest(b"weights"))


@pytest.mark.parametrize("hours", [1, -1])
async def test_a_machine_whose_clock_is_wrong_reads_and_writes(stack, monkeypatch, hours):
    objects, real, keys = s3_as(stack, "registry"), auth.get_current_datetime, (new_key(), new_key())
    monkeypatch.setattr(auth, "get_current_datetime", lambda: real() + timedelta(hours=hours))
    assert await objects.head(keys[0]) is None
    await asyncio.gather(*(objects.put_bytes(key, b"weights") for key in keys))
    monkeypatch.setattr(auth, "get_current_datetime", real)
    assert [await objects.get_bytes(key) for key in keys] == [b"weights"] * 2


async def test_a_key_is_written_once(objects):
    key = new_key()
    await objects.put_bytes(key, b"first")
    await objects.put_bytes(key, b"first")
    with pytest.raises(Conflict):
        await objects.put_bytes(key, b"second")
    assert await objects.get_bytes(key) == b"first"


async def test_of_many_writers_one_wins_and_all_others_are_refused(objects):
    key = new_key()
    results = await asyncio.gather(
        *(objects.put_bytes(key, f"writer {number}".encode()) for number in range(8)), return_exceptions=True
    )
    assert sum(isinstance(result, Conflict) for result in results) == 7


async def test_other_bytes_than_the_manifest_says_never_appear(objects, tmp_path: Path):
    key = new_key()
    await objects.put_bytes(key, b"altered")
    with pytest.raises(CorruptObject):
        await objects.get_file(key, tmp_path / "file", sha256=digest(b"original"), size_bytes=7)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CorruptObject):
        await objects.verify(key, sha256=digest(b"altered"), size_bytes=8)
    with pytest.raises(CorruptObject):
        await objects.get_bytes(key, limit_bytes=3)


@pytest.mark.parametrize("objects", ["fake", "s3"], indirect=True)
async def test_a_range_is_whole_or_refused(objects):
    key = new_key()
    await objects.put_bytes(key, b"0123456789")
    assert await objects.get_range(key, 0, 10) == b"0123456789"
    assert await objects.get_range(key, 3, 5) == b"34"
    for start, stop in ((8, 12), (10, 11), (20, 30)):
        with pytest.raises(CorruptObject):
            await objects.get_range(key, start, stop)
    with pytest.raises(KeyError):
        await objects.get_range(new_key(), 0, 1)


async def test_a_file_that_changes_while_it_is_put_is_refused(objects, tmp_path: Path):
    path = tmp_path / "part"
    path.write_bytes(b"after")
    with pytest.raises(CorruptObject):
        await objects.put_file(new_key(), path, sha256=digest(b"before"))


async def test_a_missing_key_is_a_key_error(objects):
    key = new_key()
    assert await objects.head(key) is None
    with pytest.raises(KeyError):
        await objects.get_bytes(key)


async def test_what_was_put_is_listed(objects):
    base = new_key()
    for name in ("a", "b c", "d&e"):
        await objects.put_bytes(f"{base}/{name}", b"1")
    heads = await objects.list_objects(f"{base}/")
    assert [(head.key, head.size_bytes) for head in heads] == [
        (f"{base}/{name}", 1) for name in ("a", "b c", "d&e")
    ]
    assert await objects.get_bytes(f"{base}/b c") == b"1"


@pytest.mark.parametrize("objects", ["fake", "s3"], indirect=True)
async def test_list_copy_and_delete(objects):
    base = new_key()
    await objects.put_bytes(f"{base}/a", b"1")
    await objects.copy(f"{base}/a", f"{base}/b", sha256=digest(b"1"))
    assert [head.key for head in await objects.list_objects(f"{base}/")] == [f"{base}/a", f"{base}/b"]
    await objects.delete([f"{base}/a"])
    assert [head.key for head in await objects.list_objects(f"{base}/")] == [f"{base}/b"]


async def test_a_manifest_cannot_name_a_path_outside_its_folder(objects, tmp_path: Path):
    entry = FileEntry.model_construct(path="../escape", size_bytes=1, sha256=digest(b"1"))
    with pytest.raises(CorruptObject, match="below its folder"):
        await fetch_files(objects, lambda path: path, [entry], tmp_path / "inside")


async def test_nothing_is_written_after_a_file_that_could_not_be_fetched(stack, tmp_path: Path):
    store, size_bytes = s3_as(stack, "registry"), 2 * MULTIPART_BYTES
    source = tmp_path / "large"
    source.write_bytes(b"\0" * size_bytes)
    key = new_key()
    await store.put_file(key, source, sha256=sha256_of(source))
    large = FileEntry(path="large", size_bytes=size_bytes, sha256=sha256_of(source))
    missing = FileEntry(path="missing", size_bytes=1, sha256=digest(b"1"))
    into = tmp_path / "into"
    keys = {"large": key, "missing": new_key()}
    with pytest.raises(KeyError, match=keys["missing"]):
        await fetch_files(store, keys.__getitem__, [large, missing], into)
    assert not [path for path in into.iterdir() if path.name.startswith(".")]
    shutil.rmtree(into)


@pytest.mark.parametrize("objects", ["s3", "presigned"], indirect=True)
async def test_a_large_file_goes_in_parts_and_is_write_once_too(objects, tmp_path: Path):
    path = tmp_path / "large"
    path.write_bytes(b"\0" * (MULTIPART_BYTES + 1))
    key = new_key()
    await objects.put_file(key, path, sha256=sha256_of(path))
    await objects.put_file(key, path, sha256=sha256_of(path))
    await objects.verify(key, sha256=sha256_of(path), size_bytes=MULTIPART_BYTES + 1)
    path.write_bytes(b"\1" * (MULTIPART_BYTES + 1))
    with pytest.raises(Conflict):
        await objects.put_file(key, path, sha256=sha256_of(path))


async def test_a_request_that_was_signed_too_long_ago_is_signed_again(stack):
    signer = LocalSigner(stack, "registry")
    signer.late, key = timedelta(hours=1), new_key()
    await PresignedObjectStore(signer).put_bytes(key, b"weights")
    assert await s3_as(stack, "registry").get_bytes(key) == b"weights"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"body": b"Weights"}, "BadDigest"),
        ({"body": b"weights and more"}, "SignatureDoesNotMatch"),
        ({"without": "if-none-match"}, "SignatureDoesNotMatch"),
        ({"headers": {"x-amz-copy-source": "/retune/models/another"}}, "AccessDenied"),
        ({"method": "DELETE"}, "SignatureDoesNotMatch"),
        ({"key": "another"}, "SignatureDoesNotMatch"),
        ({"query": "&acl="}, "SignatureDoesNotMatch"),
    ],
)
async def test_a_signed_request_is_good_for_nothing_else(stack, change, code):
    key = new_key()
    asked = ObjectRequest(operation="put", key=key, sha256=digest(b"weights"), size_bytes=7)
    signed = await LocalSigner(stack, "registry").sign(asked)
    headers = {name: value for name, value in signed.headers.items() if name != change.get("without")}
    body = change.get("body", b"weights")
    headers |= change.get("headers", {}) | {"content-length": str(len(body))}
    url = signed.url.replace(key, change.get("key", key)) + change.get("query", "")
    async with httpx.AsyncClient() as client:
        method = change.get("method", signed.method)
        answer = await client.request(method, url, headers=headers, content=body)
    assert f"<Code>{code}</Code>" in answer.text
    assert await s3_as(stack, "registry").head(key) is None


async def test_s3_that_does_not_answer_tells_no_time():
    with pytest.raises(StorageUnavailable, match=r"time of http://127.0.0.1:9"):
        await StoreTime("http://127.0.0.1:9", ca_file=None).now()


async def test_a_store_that_does_not_answer_is_unavailable():
    with pytest.raises(StorageUnavailable):
        await S3ObjectStore("http://127.0.0.1:9", "key", "secret", bucket="none").get_bytes("x")
