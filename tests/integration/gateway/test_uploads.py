"""Files on their way into the gateway: names, sizes, forms at fault."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator

import pytest

from tests.integration.gateway.world import MAX_UPLOAD_BYTES, World
from tests.parquet import parquet_of
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.stack


class TestUploads:
    @pytest.mark.parametrize(
        ("name", "shown"),
        [
            ("../../etc/passwd", "passwd"),
            ("a\u202eb.jsonl", "ab.jsonl"),
            ("x" * 3000, "x" * 255),
            ("..", "upload.jsonl"),
        ],
    )
    async def test_with_a_hostile_name_are_shown_by_a_harmless_one(self, world, name, shown):
        assert (await world.upload(name=name))["filename"] == shown

    async def test_with_a_nul_in_the_name_are_kept(self, world):
        form = (
            b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a\x00b.jsonl"\r\n\r\n'
            b'{"text": "a"}\r\n--b--\r\n'
        )
        headers = {"content-type": "multipart/form-data; boundary=b"}
        answer = await world.ask("POST", "/files", content=form, headers=headers)
        assert (answer.status_code, answer.json()["filename"]) == (200, "ab.jsonl")

    async def test_that_are_announced_as_too_long_are_refused_unread(self, world):
        """Nothing but the head is sent: an answer shows that nobody waited for the body."""
        head = (
            f"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {world.keys['demo']}\r\n"
            f"content-type: multipart/form-data; boundary=b\r\ncontent-length: {MAX_UPLOAD_BYTES * 2}\r\n\r\n"
        )
        answer = await raw(world, head.encode())
        assert answer.startswith(b"HTTP/1.1 413")
        assert b'"code":"request_too_large"' in answer

    async def test_that_grow_too_long_are_refused(self, world):
        async def endless() -> AsyncIterator[bytes]:
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
            for _ in range(3 * MAX_UPLOAD_BYTES // 65536):
                yield b"x" * 65536

        headers = {"content-type": "multipart/form-data; boundary=b"}
        answer = await world.ask("POST", "/files", content=endless(), headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")

    async def test_of_strangers_are_not_read(self, world):
        head = (
            "POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer nobody\r\n"
            "content-type: multipart/form-data; boundary=b\r\ncontent-length: 1000\r\n\r\n"
        )
        assert (await raw(world, head.encode())).startswith(b"HTTP/1.1 401")

    @pytest.mark.parametrize(
        ("files", "data", "param", "code"),
        [
            ({"file": ("a", b"PAR1\x15\x04")}, {"purpose": "fine-tune"}, "file", "invalid_file"),
            ({"file": ("a", b"{")}, {"purpose": "fine-tune"}, "file", "invalid_file"),
            ({"file": ("a", b"{}")}, {"purpose": "fine-tune", "colour": "x"}, "colour", "unknown_parameter"),
            (
                {"file": ("a", b"{}")},
                {"purpose": "fine-tune", "expires_after[anchor]": "created_at"},
                "expires_after",
                "not_available_yet",
            ),
            ({"file": ("a", b"{}")}, {"purpose": "vision"}, "purpose", "invalid_value"),
            ({"file": ("a", b"{}")}, {}, "purpose", "missing_required_parameter"),
            ({"other": ("a", b"{}")}, {"purpose": "fine-tune"}, "other", "unknown_parameter"),
            (None, {"purpose": "fine-tune", "file": "text"}, "file", "invalid_value"),
            (None, {}, "file", "missing_required_parameter"),
        ],
    )
    async def test_at_fault_are_refused_by_field(self, world, files, data, param, code):
        answer = await world.ask("POST", "/files", files=files, data=data)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


class TestParquet:
    """Takes the place of JSON lines: the bytes stay as they were sent."""

    CONTENT = parquet_of(
        {"messages": [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": "Yes."}]}
        for number in range(130)
    )

    async def test_is_a_file_like_any_other_to_openais_client(self, world):
        async with world.client() as client:
            file = await client.files.create(file=("rows.parquet", self.CONTENT), purpose="fine-tune")
            assert (file.object, file.filename, file.bytes) == ("file", "rows.parquet", len(self.CONTENT))
            content = await client.files.content(file.id)
        assert content.content == self.CONTENT
        assert content.response.headers["content-type"] == "application/vnd.apache.parquet"
        shown = (await world.ask("GET", f"/files/{file.id}")).json()
        assert shown["retune"]["format"] == "chat"
        assert shown["retune"]["sha256"] == hashlib.sha256(self.CONTENT).hexdigest()
        assert await world.db.fetchval("SELECT num_rows FROM file WHERE file_id = $1", file.id) == 130

    async def test_in_parts_is_put_together_and_looked_at(self, world):
        async with world.client() as client:
            upload = await client.uploads.upload_file_chunked(
                file=self.CONTENT,
                filename="rows.parquet",
                bytes=len(self.CONTENT),
                mime_type="application/vnd.apache.parquet",
                purpose="fine-tune",
                part_size=1_000,
            )
        assert upload.status == "completed"
        shown = (await world.ask("GET", f"/files/{upload.file.id}")).json()
        assert (shown["bytes"], shown["retune"]["format"]) == (len(self.CONTENT), "chat")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (
                CONTENT[:-20],
                f"file: the file is Parquet that is cut off: its {len(CONTENT) - 20} bytes end with ",
            ),
            (parquet_of([{"question": "a"}]), "file: line 1: found keys question, expected messages; "),
            (
                parquet_of([{"text": "a", "image": b"x"}]),
                "file: the file has column 'image' of type binary, ",
            ),
        ],
    )
    async def test_that_is_no_good_is_refused_and_not_stored(self, world, content, message):
        before = await world.db.fetchval("SELECT count(*) FROM file")
        files = {"file": ("rows.parquet", content)}
        answer = await world.ask("POST", "/files", files=files, data={"purpose": "fine-tune"})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, "file", "invalid_file")
        assert error["message"].startswith(message)
        assert await world.db.fetchval("SELECT count(*) FROM file") == before


async def raw(world: World, request: bytes) -> bytes:
    port = int(world.stack.url("gateway").rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None, head
            return head + await reader.readexactly(int(length[1]))
    finally:
        writer.close()
