"""Times of jobs as estimated before they began, beside what they took: `python -m bench.estimates ROWS`.

ROWS is a file of conversations, one in a line of JSON, gzipped or not, with 400 of them or more. On the local
stack, jobs of two small base models train one after the other, each with a number of rows, a method and a number of
epochs that are drawn with a seed. What was estimated for a job when it was submitted, before its file was
validated, and when it was scheduled is compared with the seconds for which it held its device. Of the first jobs
nothing can be known: figures count from the one after the twentieth on, as docs/performance.md says them, and for
all that had an estimate.
"""

import argparse
import asyncio
import gzip
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncpg
import openai

from bench import report
from deploy.local.stack import Stack
from tests.tiny_model import build_tiny_model

SERVICES = (
    "gateway",
    "ingest",
    "scheduler",
    "provisioner",
    "trainer_agent",
    "checkpoint_watcher",
    "registry",
    "tracker",
)
"""Without the gate: a job's devices are free again before it."""
BASES = {"small": {"hidden_size": 64, "num_layers": 2}, "larger": {"hidden_size": 256, "num_layers": 4}}
JOBS = 36
LEARNED_FROM = 20
PATIENCE_SECONDS = 600.0
SEED = 1
TIME_OF_JOB = """
    SELECT training_seconds, other_seconds FROM attempt_time WHERE job_id = $1"""


@dataclass(frozen=True)
class Asked:
    base: str
    method: str
    num_rows: int
    num_epochs: int


@dataclass(frozen=True)
class Outcome:
    asked: Asked
    training_seconds: float
    other_seconds: float
    at_submit: dict[str, float] | None
    when_scheduled: dict[str, float] | None

    @property
    def seconds(self) -> float:
        return self.training_seconds + self.other_seconds


def drawn(seed: int) -> list[Asked]:
    draw = random.Random(seed)
    return [
        Asked(
            base=draw.choice(sorted(BASES)),
            method=draw.choice(["lora", "sft"]),
            num_rows=round(40 * 8 ** draw.random()),
            num_epochs=draw.choice([1, 2, 3]),
        )
        for _ in range(JOBS)
    ]


async def main(arguments: argparse.Namespace) -> None:
    rows = read_rows(arguments.rows)
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder) / "state", report=report.progress)
        await stack.up(SERVICES)
        try:
            outcomes = await run(stack, Path(folder), rows)
        finally:
            await stack.down()
    results = {
        "when scheduled": figures(outcomes, [each.when_scheduled for each in outcomes]),
        "at submit": figures(outcomes, [each.at_submit for each in outcomes]),
        "jobs": [asdict(each) for each in outcomes],
    }
    settings = {"jobs": JOBS, "learned_from": LEARNED_FROM, "seed": SEED, "rows": arguments.rows.name}
    report.write("estimates", results, packages=("torch", "transformers", "peft"), settings=settings)


async def run(stack: Stack, folder: Path, rows: Sequence[dict[str, Any]]) -> list[Outcome]:
    env = stack.operator_env()
    text = "\n".join(message["content"] for row in rows[:500] for message in row["messages"])
    for name, shape in BASES.items():
        model = build_tiny_model(folder / name, text=text, vocab_size=2_048, **shape)
        await retune(env, "models", "register-base", name, str(model))
    client = openai.AsyncOpenAI(base_url=env["RETUNE_BASE_URL"], api_key=env["RETUNE_API_KEY"])
    db = await asyncpg.connect(stack.postgres_dsn("gateway"))
    outcomes = []
    for number, asked in enumerate(drawn(SEED), 1):
        outcome = await train(client, db, folder / "rows.jsonl", rows, asked)
        outcomes.append(outcome)
        expected = (
            "nothing" if outcome.when_scheduled is None else f"{outcome.when_scheduled['expected']:.1f} s"
        )
        report.progress(
            f"job {number} of {JOBS}: took {outcome.seconds:.1f} s, estimated {expected}; {asked}"
        )
    await db.close()
    await client.close()
    return outcomes


async def train(
    client: openai.AsyncOpenAI, db: Any, path: Path, rows: Sequence[dict[str, Any]], asked: Asked
) -> Outcome:
    first = random.Random(repr(asked)).randrange(len(rows) - asked.num_rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[first : first + asked.num_rows]))
    file = await client.files.create(file=path, purpose="fine-tune")
    recipe = {"method": asked.method, "num_epochs": asked.num_epochs, "batch_size": 4}
    ours = {"recipe": recipe, "resources": {"pool": "cpu-on-demand"}, "allow_ungated": True}
    submitted = await client.fine_tuning.jobs.create(
        model=asked.base, training_file=file.id, extra_body={"retune": ours}
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (took := await db.fetchrow(TIME_OF_JOB, submitted.id)) is None:
            await asyncio.sleep(0.2)
            job = (await client.fine_tuning.jobs.retrieve(submitted.id)).model_dump()
            assert job["status"] not in ("failed", "cancelled"), job["error"]
    return Outcome(
        asked,
        took["training_seconds"],
        took["other_seconds"],
        at_submit=seconds_in(submitted.model_dump()),
        when_scheduled=seconds_in(job),
    )


def seconds_in(job: dict[str, Any]) -> dict[str, float] | None:
    estimates = job["retune"]["estimated_times"]
    return estimates[0]["seconds"] if estimates else None


def figures(outcomes: Sequence[Outcome], estimates: Sequence[dict[str, float] | None]) -> dict[str, Any]:
    pairs = [(each.seconds, estimate) for each, estimate in zip(outcomes, estimates, strict=True)]
    return {"after_twenty": errors(pairs[LEARNED_FROM:]), "all": errors(pairs)}


def errors(pairs: Iterable[tuple[float, dict[str, float] | None]]) -> dict[str, Any]:
    known = [(seconds, estimate) for seconds, estimate in pairs if estimate is not None]
    of_each = [abs(estimate["expected"] - seconds) / seconds for seconds, estimate in known]
    within = [estimate["low"] <= seconds <= estimate["high"] for seconds, estimate in known]
    return {
        "jobs": len(known),
        "median_error": round(statistics.median(of_each), 4),
        "largest_error": round(max(of_each), 4),
        "share_within_range": round(sum(within) / len(within), 4),
    }


def read_rows(path: Path) -> list[dict[str, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as lines:
        return [json.loads(line) for line in lines]


async def retune(env: dict[str, str], *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli.app", *arguments, env=os.environ | env
    )
    assert await process.wait() == 0, arguments


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(options()))
