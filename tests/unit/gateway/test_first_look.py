"""The first look at an upload: JSON lines by the gateway itself, Parquet in a process of its own."""

import asyncio
import json

import pyarrow as pa
import pytest

from schemas.specification import DatasetFormat
from services.gateway import first_look
from services.gateway.errors import ApiError
from services.gateway.first_look import FirstLook, Look, Order, look_at
from tests.parquet import parquet_of

CHATS = [{"messages": [{"role": "user", "content": f"{number}?"}]} for number in range(70)]


@pytest.fixture
def path(tmp_path):
    (tmp_path / "scratch").mkdir()
    return tmp_path / "rows"


@pytest.fixture
def look(tmp_path):
    return FirstLook(tmp_path / "scratch")


async def test_json_lines_are_looked_at_here(path, look, monkeypatch):
    async def carry_out(*_args, **_options):
        raise AssertionError("a process was started")

    monkeypatch.setattr(first_look, "carry_out", carry_out)
    path.write_text("\n".join(json.dumps(row) for row in CHATS) + "\n\n")
    assert await look(path, "fine-tune") == Look(format=DatasetFormat.CHAT, num_rows=70)


async def test_parquet_has_the_format_of_its_first_row_and_the_rows_of_its_footer(path, look, tmp_path):
    path.write_bytes(parquet_of(CHATS))
    assert await look(path, "fine-tune") == Look(format=DatasetFormat.CHAT, num_rows=70)
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "purpose", "message"),
    [
        (parquet_of(CHATS)[:-9], "fine-tune", "the file is Parquet that is cut off: "),
        (parquet_of(CHATS)[:-4] + b"PARE", "fine-tune", "the file is encrypted Parquet, expected "),
        (parquet_of([{"question": "a"}]), "fine-tune", "line 1: found keys question, expected messages; "),
        (
            parquet_of(pa.table({"text": pa.array([], pa.string())})),
            "fine-tune",
            "the file has no rows, expected ",
        ),
        (
            parquet_of([{"text": "a", "image": b"x"}]),
            "benchmark",
            "the file has column 'image' of type binary, ",
        ),
        (parquet_of([{"text": "x" * 5_000_000}]), "fine-tune", "line 1 has over 4194304 bytes"),
    ],
)
def test_what_cannot_be_rows_is_refused_in_words(path, content, purpose, message):
    path.write_bytes(content)
    assert look_at(Order(path=path, purpose=purpose)).problem.startswith(message)


def test_rows_of_a_suite_need_no_format(path):
    path.write_bytes(parquet_of([{"question": "a"}]))
    assert look_at(Order(path=path, purpose="benchmark")) == Look(num_rows=1)


async def test_a_file_that_ends_the_process_is_refused_and_the_next_one_is_looked_at(path, look):
    """One page unpacks to more than the process may have."""
    zeros = pa.array(["0" * (1 << 20)] * 1_000)
    options = {"use_dictionary": False, "data_page_size": 2 << 30, "write_batch_size": 1_000}
    path.write_bytes(parquet_of(pa.table({"text": zeros}), compression="zstd", **options))
    with pytest.raises(
        ApiError, match="its first rows could not be read as Parquet within 30 s and"
    ) as caught:
        await look(path, "fine-tune")
    assert caught.value.body["error"]["code"] == "invalid_file"
    path.write_bytes(parquet_of(CHATS))
    assert (await look(path, "fine-tune")).num_rows == 70


async def test_one_parquet_file_is_looked_at_at_a_time(path, look, monkeypatch):
    running: list[int] = []
    most = 0

    async def carry_out(*_args, on_message, **_options):
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        await asyncio.sleep(0.01)
        running.pop()
        on_message(Look(num_rows=1))
        return 0

    monkeypatch.setattr(first_look, "carry_out", carry_out)
    path.write_bytes(parquet_of(CHATS))
    looks = await asyncio.gather(*(look(path, "fine-tune") for _ in range(3)))
    assert (most, [each.num_rows for each in looks]) == (1, [1, 1, 1])
