"""One validation from file to version: rows per second of processor time, and the greatest memory.

    python -m bench.ingest.rows_per_second FILE.jsonl.gz [--rows 8000] [--rounds 3] [--holdout]

Each round is the service's own child process under the service's limits, its start included; the tokenizer is a
small one made from the file's first rows. More rows than the file has are copies of its chat rows with the words of
the prompts in another order: other rows to the filters, with the same answers.
"""

import argparse
import gzip
import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.report import progress, summary, write
from schemas.base import FileRef
from schemas.layout import MANIFEST
from schemas.specification import DatasetPolicy, DatasetSpec
from services.ingest.pipeline.order import Limits, WorkOrder
from tests.builders import a_sha
from tests.tiny_model import save_tokenizer

CONTEXT = 4096


def main(path: Path, rows: int, rounds: int, *, with_holdout: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        order_file, training_rows = _prepared(Path(name), path, rows, with_holdout=with_holdout)
        ended = []
        for number in range(rounds):
            ended.append(_round(order_file))
            progress(f"round {number + 1} of {rounds}: {ended[-1]}")
        manifest = json.loads((Path(name) / "output" / MANIFEST).read_bytes())
    write(
        f"ingest-{training_rows}-rows",
        {
            "rows_per_second": summary([training_rows / each["seconds"] for each in ended]),
            "peak_mib": summary([each["peak_mib"] for each in ended]),
            "counts": manifest["counts"],
        },
        packages=("numpy", "tokenizers", "xxhash"),
        settings={"file": path.name, "rows": training_rows, "holdout": with_holdout},
    )


def _round(order_file: Path) -> dict[str, float]:
    """The processor seconds that the child process took, and its greatest resident memory."""
    command = [sys.executable, "-m", "services.ingest.pipeline", str(order_file)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    last = ""
    for last in child.stdout:
        progress(last.rstrip())
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0 or json.loads(last).get("code") != "ready":
        raise SystemExit(f"the validating process ended with {child.returncode}; it said last: {last}")
    return {"seconds": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / 1024}


def _prepared(directory: Path, path: Path, rows: int, *, with_holdout: bool) -> tuple[Path, int]:
    with gzip.open(path, "rb") as lines:
        given = list(lines)
    random.Random(1).shuffle(given)
    chosen = list(itertools.islice(_with_copies(given), rows))
    holdout = chosen[: rows // 10] if with_holdout else []
    for name in ("tokenizer", "output", "scratch"):
        (directory / name).mkdir()
    text = "\n".join(line.decode()[:200] for line in chosen[:2000])
    save_tokenizer(directory / "tokenizer", text=text, vocab_size=4000, context_tokens=CONTEXT)
    order = _order(directory, chosen[len(holdout) :], holdout)
    (directory / "order.json").write_text(order.model_dump_json())
    return directory / "order.json", len(chosen) - len(holdout)


def _with_copies(lines: Sequence[bytes]) -> Iterator[bytes]:
    """The lines, then copies of them without end."""
    yield from lines
    chance = random.Random(2)
    for line in itertools.cycle(lines):
        row = json.loads(line)
        for message in row["messages"]:
            if message["role"] == "user":
                words = message["content"].split(" ")
                chance.shuffle(words)
                message["content"] = " ".join(words)
        yield json.dumps(row).encode() + b"\n"


def _order(directory: Path, training: list[bytes], holdout: list[bytes]) -> WorkOrder:
    files = {"training": training} | ({"holdout": holdout} if holdout else {})
    for name, lines in files.items():
        (directory / name).write_bytes(b"".join(lines))
    ref = FileRef(file_id="file", sha256=a_sha("file"), size_bytes=1)
    policy = DatasetPolicy(max_dropped_ratio=1.0, max_bad_ratio=1.0)
    spec = DatasetSpec(base_model="tiny", base_sha=a_sha("tiny"), training_file=ref, policy=policy)
    template = (directory / "tokenizer" / "chat_template.jinja").read_bytes()
    return WorkOrder(
        version=a_sha("version"),
        tenant="bench",
        spec=spec.model_copy(update={"holdout": ref} if holdout else {}),
        template_sha256=hashlib.sha256(template).hexdigest(),
        context_tokens=CONTEXT,
        tokenizer=directory / "tokenizer",
        output=directory / "output",
        scratch=directory / "scratch",
        limits=Limits(memory_bytes=6 << 30, cpu_seconds=7200, file_bytes=1 << 34),
        **{name: directory / name for name in files},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--holdout", action="store_true", help="a tenth of the rows is the holdout")
    asked = parser.parse_args()
    main(asked.path, asked.rows, asked.rounds, with_holdout=asked.holdout)
