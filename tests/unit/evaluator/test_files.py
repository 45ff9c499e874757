"""The cache of several evaluations at once: nobody loses what it uses, and files of rows are JSON lines."""

import asyncio
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from schemas import layout
from schemas.base import FileRef
from services.evaluator.clients import unpack
from services.evaluator.clients.files import Cache
from services.evaluator.scoring.rows import read_tasks
from shared.errors import Rejected
from shared.storage.testing import FakeObjectStore
from tests.parquet import parquet_of
from tests.stored import put_model

HOUR = 3600.0


def an_entry(root: Path, name: str, *, hours_ago: float) -> Path:
    path = root / "models" / name
    path.mkdir(parents=True)
    (path / "weights").write_bytes(bytes(100))
    os.utime(path, (0, time.time() - hours_ago * HOUR))
    return path


def a_cache(root: Path, *, max_bytes: int) -> Cache:
    nowhere: Any = None
    return Cache(nowhere, root, max_bytes=max_bytes)


async def test_the_longest_unused_goes_first(tmp_path: Path):
    old, new = an_entry(tmp_path, "old", hours_ago=2), an_entry(tmp_path, "new", hours_ago=1)
    await a_cache(tmp_path, max_bytes=150).trim()
    assert (old.exists(), new.exists()) == (False, True)


async def test_what_another_evaluation_uses_stays_whatever_its_size(tmp_path: Path):
    cache = a_cache(tmp_path, max_bytes=50)
    with cache.in_use():
        used, unused = an_entry(tmp_path, "used", hours_ago=0), an_entry(tmp_path, "unused", hours_ago=1)
        with cache.in_use():
            await cache.trim()
        assert (used.exists(), unused.exists()) == (True, False)
    os.utime(used, (0, time.time() - HOUR))
    await cache.trim()
    assert not used.exists()


async def test_what_an_earlier_try_has_scored_stays_when_it_continues(tmp_path: Path):
    cache = a_cache(tmp_path, max_bytes=50)
    (cache.work_dir("eval-1") / "scores").write_bytes(bytes(100))
    os.utime(tmp_path / "work" / "eval-1", (0, time.time() - HOUR))
    with cache.in_use():
        assert (cache.work_dir("eval-1") / "scores").exists()
        await cache.trim()
        assert (tmp_path / "work" / "eval-1" / "scores").exists()


async def test_a_model_that_two_fetch_at_once_is_there_for_both(tmp_path: Path):
    objects = FakeObjectStore()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("x")
    digest = await put_model(objects, tmp_path / "model", base_sha="b" * 64)
    cache = Cache(objects, tmp_path / "cache", max_bytes=1000)
    path, same = await asyncio.gather(cache.model(digest), cache.model(digest))
    assert path == same
    assert (path / "weights").read_text() == "x"
    assert list((tmp_path / "cache" / "drafts").iterdir()) == []


ROWS = [
    {"messages": [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": "Yes."}]}
    for number in range(100)
]


async def blob_of(content: bytes, root: Path, *, times: int = 1) -> Path:
    objects = FakeObjectStore()
    sha256 = await objects.put_bytes(layout.blob(hashlib.sha256(content).hexdigest()), content)
    file = FileRef(file_id="file-1", sha256=sha256, size_bytes=len(content))
    cache = Cache(objects, root, max_bytes=10**9)
    (path,) = {*await asyncio.gather(*(cache.blob(file) for _ in range(times)))}
    assert path.name == sha256
    return path


async def test_a_file_of_rows_in_parquet_is_kept_as_json_lines(tmp_path: Path):
    lines = "".join(f"{json.dumps(row)}\n" for row in ROWS).encode()
    path = await blob_of(parquet_of(ROWS), tmp_path / "one", times=2)
    assert path.read_bytes() == lines
    assert read_tasks(path) == read_tasks(await blob_of(lines, tmp_path / "other"))
    assert list((tmp_path / "one" / "drafts").iterdir()) == []


async def test_parquet_that_cannot_be_read_is_refused_and_not_kept(tmp_path: Path):
    with pytest.raises(Rejected, match="file file-1 is Parquet that is cut off: its"):
        await blob_of(parquet_of(ROWS)[:-1], tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


async def test_parquet_that_ends_the_process_is_refused(tmp_path: Path):
    """One page unpacks to more than the process may have."""
    zeros = pa.array(["0" * (1 << 20)] * 2_000)
    options = {"use_dictionary": False, "data_page_size": 2 << 30, "write_batch_size": 2_000}
    content = parquet_of(pa.table({"text": zeros}), compression="zstd", **options)
    with pytest.raises(
        Rejected, match="could not be read as Parquet within 600 s and 2147483648 bytes of memory"
    ):
        await blob_of(content, tmp_path)


def test_parquet_of_more_text_than_the_gate_takes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unpack, "MAX_GATE_BYTES", 500)
    path = tmp_path / "rows"
    path.write_bytes(parquet_of(ROWS))
    answer = unpack.write_rows(unpack.Order(path=path, into=tmp_path / "lines"))
    assert answer.problem == "has more than 500 bytes as JSON lines, expected at most that"
