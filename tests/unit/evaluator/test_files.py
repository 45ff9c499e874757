"""The cache of several evaluations at once: nobody loses what it uses."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from services.evaluator.clients.files import Cache
from shared.storage.testing import FakeObjectStore
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
