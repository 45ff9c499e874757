"""One validation from file to version: rows per second of processor time, and memory per row.

    python -m bench.ingest.rows_per_second FILE.jsonl.gz [--rows 8000] [--rounds 3] [--holdout]

Each round is a process of its own, so that its peak of memory is its own; the tokenizer is a small one made from the
file's first rows.
"""

import argparse
import gzip
import hashlib
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.report import progress, summary, write
from schemas.base import FileRef
from schemas.specification import DatasetPolicy, DatasetSpec
from services.ingest.pipeline.order import Limits, Order
from tests.builders import a_sha
from tests.tiny_model import save_tokenizer

CONTEXT = 4096
ROUND = """
import json, re, sys, time
sys.modules["torch"] = None
from transformers import AutoTokenizer
from services.ingest.pipeline.order import Order
from services.ingest.pipeline.run import validate
order = Order.model_validate_json(open(sys.argv[1]).read())
peak_kib = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before, started = peak_kib(), time.process_time()
done = validate(order, lambda progress: None)
seconds = time.process_time() - started
print(json.dumps({"code": done.code, "seconds": seconds, "grown_kib": peak_kib() - before}))
"""


def main(path: Path, rows: int, rounds: int, *, with_holdout: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        order_file, training_rows = _prepared(Path(name), path, rows, with_holdout=with_holdout)
        found = []
        for number in range(rounds):
            found.append(_round(order_file))
            progress(f"round {number + 1} of {rounds}: {found[-1]}")
    write(
        "ingest-rows-per-second",
        {
            "rows_per_second": summary([training_rows / each["seconds"] for each in found]),
            "kib_per_row": summary([each["grown_kib"] / training_rows for each in found]),
            "code": found[0]["code"],
        },
        packages=("numpy", "tokenizers", "xxhash"),
        settings={"file": path.name, "rows": training_rows, "holdout": with_holdout},
    )


def _round(order_file: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", ROUND, str(order_file)], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def _prepared(directory: Path, path: Path, rows: int, *, with_holdout: bool) -> tuple[Path, int]:
    with gzip.open(path, "rb") as lines:
        chosen = list(lines)
    random.Random(1).shuffle(chosen)
    chosen = chosen[:rows]
    holdout = chosen[: rows // 10] if with_holdout else []
    for name in ("tokenizer", "output", "scratch"):
        (directory / name).mkdir()
    text = "\n".join(line.decode()[:200] for line in chosen[:2000])
    save_tokenizer(directory / "tokenizer", text=text, vocab_size=4000, context_tokens=CONTEXT)
    order = _order(directory, chosen[len(holdout) :], holdout)
    (directory / "order.json").write_text(order.model_dump_json())
    return directory / "order.json", rows - len(holdout)


def _order(directory: Path, training: list[bytes], holdout: list[bytes]) -> Order:
    files = {"training": training} | ({"holdout": holdout} if holdout else {})
    for name, lines in files.items():
        (directory / name).write_bytes(b"".join(lines))
    ref = FileRef(file_id="file", sha256=a_sha("file"), size_bytes=1)
    policy = DatasetPolicy(max_dropped_ratio=1.0, max_bad_share=1.0)
    spec = DatasetSpec(base_model="tiny", base_sha=a_sha("tiny"), training_file=ref, policy=policy)
    template = (directory / "tokenizer" / "chat_template.jinja").read_bytes()
    return Order(
        version=a_sha("version"),
        tenant="bench",
        spec=spec.model_copy(update={"holdout": ref} if holdout else {}),
        template_sha256=hashlib.sha256(template).hexdigest(),
        context_tokens=CONTEXT,
        tokenizer=directory / "tokenizer",
        output=directory / "output",
        scratch=directory / "scratch",
        limits=Limits(memory_bytes=4 << 30, cpu_seconds=3600, file_bytes=1 << 32),
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
