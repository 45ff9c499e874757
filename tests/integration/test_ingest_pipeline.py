"""The validating child process as it is: a real tokenizer, real files, real limits."""

import hashlib
import json
import random
import subprocess
import sys
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from schemas.artifacts import DatasetManifest, FileEntry
from schemas.base import FileRef
from schemas.report import DatasetReport, FileReport
from schemas.specification import DatasetPolicy, DatasetSpec, Method, SafetyMix
from services.ingest.clients import run_child
from services.ingest.pipeline.order import Finished, LimitExceeded, Limits, SourceFile, WorkOrder
from shared.processes.workers import REPOSITORY
from tests.builders import a_sha
from tests.tiny_model import save_tokenizer

# A process inherits the peak of the one that forked it, and a test run may be large: measure from a small one.
MEASURED = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""

CONTEXT = 256
GENEROUS = Limits(memory_bytes=4 << 30, cpu_seconds=300, file_bytes=1 << 30)
WORDS = [
    "heap",
    "stack",
    "queue",
    "tree",
    "graph",
    "list",
    "array",
    "map",
    "set",
    "node",
    "edge",
    "path",
    "root",
    "leaf",
    "key",
    "value",
    "sort",
    "merge",
]


def sentence(rng: random.Random, length: int = 12) -> str:
    return " ".join(rng.choice(WORDS) + str(rng.randrange(100)) for _ in range(length))


def chat(question: str, answer: str, **more: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer, **more}]
    }


def rows(count: int, *, seed: int = 1) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [chat(f"What is {sentence(rng)}?", f"It is {sentence(rng)}.") for _ in range(count)]


class Bench:
    """A folder with a tokenizer, in which orders are carried out."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tokenizer = directory / "tokenizer"
        text = "\n".join(f"{word}{number} " for word in WORDS for number in range(100))
        save_tokenizer(self.tokenizer, text=text, vocab_size=600, context_tokens=CONTEXT)
        self._orders = 0

    def file(self, content: list[Any] | bytes) -> Path:
        if not isinstance(content, bytes):
            content = b"".join(json.dumps(row).encode() + b"\n" for row in content)
        path = self.directory / hashlib.sha256(content).hexdigest()
        path.write_bytes(content)
        return path

    def order(self, training: Any, *, spec: dict[str, Any] | None = None, **files: Any) -> WorkOrder:
        """`files`: validation, holdout, safety_mix as rows, sources by name; anything else is the order's."""
        self._orders += 1
        home = self.directory / f"order-{self._orders}"
        for name in ("output", "scratch"):
            (home / name).mkdir(parents=True)
        sources = tuple(
            SourceFile(name=name, kind="benchmark", digest=a_sha(name), path=self.file(content))
            for name, content in files.pop("sources", {}).items()
        )
        paths = {
            name: self.file(files.pop(name))
            for name in ("validation", "holdout", "safety_mix")
            if name in files
        }
        paths["training"] = self.file(training)
        path = self.tokenizer / "chat_template.jinja"
        template = path.read_bytes() if path.exists() else b""
        fields = {
            "version": a_sha("version"),
            "tenant": "acme",
            "spec": _spec(paths, spec or {}),
            "template_sha256": hashlib.sha256(template).hexdigest(),
            "context_tokens": CONTEXT,
            "tokenizer": self.tokenizer,
            "sources": sources,
            "output": home / "output",
            "scratch": home / "scratch",
            "limits": GENEROUS,
        }
        return WorkOrder(**fields | paths | files)

    async def run(self, training: Any, **options: Any) -> "Made":
        order = self.order(training, **options)
        return Made(order, await carry_out(order))


def _spec(paths: dict[str, Path], changes: dict[str, Any]) -> DatasetSpec:
    def ref(name: str) -> FileRef:
        return FileRef(file_id=name, sha256=paths[name].name, size_bytes=paths[name].stat().st_size)

    fields = {"base_model": "tiny", "base_sha": a_sha("tiny"), "training_file": ref("training")}
    for name, field in (("validation", "validation_file"), ("holdout", "holdout")):
        if name in paths:
            fields[field] = ref(name)
    if "safety_mix" in paths:
        fields["safety_mix"] = SafetyMix(file=ref("safety_mix"), share=changes.pop("share", 0.1))
    return DatasetSpec(**fields | changes)


async def carry_out(order: WorkOrder, *, seconds: float = 300) -> Finished | LimitExceeded:
    return await run_child(order, order.output.parent, limit=timedelta(seconds=seconds))


class Made:
    def __init__(self, order: WorkOrder, answer: Finished | LimitExceeded) -> None:
        self.order = order
        self.answer = answer
        self.report = DatasetReport.model_validate_json((order.output / "report.json").read_bytes())

    @property
    def code(self) -> str:
        assert isinstance(self.answer, Finished), self.answer
        assert self.answer.code == self.report.code
        return self.answer.code

    @property
    def manifest(self) -> DatasetManifest:
        assert self.code == "ready", self.answer
        return DatasetManifest.model_validate_json((self.order.output / "manifest.json").read_bytes())

    def file(self, role: str) -> FileReport:
        return next(file for file in self.report.files if file.role == role)

    def examples(self, entries: tuple[FileEntry, ...] | None = None) -> dict[int, tuple[str, str]]:
        """By line: the whole text, and the text of the tokens that are targets."""
        tokenizer = Tokenizer.from_file(str(self.order.tokenizer / "tokenizer.json"))
        examples_by_line = {}
        for entry in self.manifest.training if entries is None else entries:
            part = load_file(self.order.output / entry.path)
            offsets = part["example_offsets"]
            for number, line in enumerate(part["example_lines"].tolist()):
                tokens = part["tokens"][offsets[number] : offsets[number + 1]]
                mask = part["loss_mask"][offsets[number] : offsets[number + 1]].astype(bool)
                examples_by_line[line] = (
                    tokenizer.decode(tokens.tolist(), skip_special_tokens=False),
                    tokenizer.decode(tokens[mask].tolist(), skip_special_tokens=False),
                )
        return examples_by_line

    def digests(self) -> dict[str, str]:
        output = self.order.output
        return {
            str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in output.rglob("*")
            if path.is_file()
        }


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("ingest"))


CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "heap1"}'}}
GOOD = rows(60)
BENCHMARK = sentence(random.Random(7), 40)
PLANTED = [
    *GOOD,
    chat(GOOD[0]["messages"][0]["content"] + "  ", GOOD[0]["messages"][1]["content"]),  # 61: exact duplicate
    chat(GOOD[1]["messages"][0]["content"] + "!", GOOD[1]["messages"][1]["content"]),  # 62: near duplicate
    {"messages": GOOD[2]["messages"][::-1]},  # 63: roles out of order
    chat("What is it?", " "),  # 64: empty answer
    chat("What is it?", "", tool_calls=[CALL]),  # 65: a tool call, which the template leaves out
    chat(BENCHMARK, "No idea."),  # 66: in a benchmark
    chat("Go on.", sentence(random.Random(8), 300)),  # 67: over the window
    rows(1, seed=99)[0],  # 68: a holdout row
    rows(1, seed=98)[0],  # 69: a validation row
]


@pytest.fixture(scope="module")
async def outcome(bench: Bench) -> Made:
    return await bench.run(
        PLANTED,
        spec={"share": 0.2},
        holdout=rows(1, seed=99) + rows(50, seed=2),
        validation=rows(1, seed=98) + rows(9, seed=3),
        safety_mix=rows(40, seed=4),
        sources={"arc": [{"question": BENCHMARK, "choices": ["a", "b"]}]},
        answer_tokens=3,
    )


class TestPlantedFaults:
    def test_each_is_reported_by_line_and_rule(self, outcome: Made) -> None:
        training = outcome.file("training")
        assert [(each.line, each.rule) for each in training.problems] == [
            (63, "chat.role_order"),
            (64, "chat.content_empty"),
            (65, "template.tools"),
            (67, "tokens.over_length"),
        ]
        assert {each.file for each in training.problems} == {"training"}
        clusters = {
            (cluster.kept_file, cluster.kept_line): [each.line for each in cluster.duplicates]
            for cluster in training.clusters
        }
        assert clusters == {
            ("training", 1): [61],
            ("training", 2): [62],
            ("holdout", 1): [68],
            ("validation", 1): [69],
        }
        assert {each.line: each.source for each in training.overlaps if each.is_contaminated} == {
            66: "arc",
            68: "holdout",
        }
        assert (training.contaminated_rows, training.holdout_duplicates) == (2, 1)

    def test_exactly_the_good_rows_are_trained_on_with_a_share_of_the_mix(self, outcome: Made) -> None:
        lines = set(outcome.examples())
        assert {line for line in lines if line > 0} == set(range(1, 61))
        assert len({line for line in lines if line < 0}) == 12
        counts = outcome.manifest.counts
        assert (counts.rows, counts.safety_rows, counts.validation_rows) == (72, 12, 10)
        assert (counts.rejected_rows, counts.exact_duplicates, counts.near_duplicates) == (4, 2, 1)
        assert (counts.contaminated_rows, outcome.report.safety_rows) == (2, 12)
        assert (counts.holdout_rows, counts.long_answers, counts.answer_tokens) == (51, 51, 3)
        assert (counts.training_file_rows, counts.contaminated_by_source) == (69, {"arc": 1, "holdout": 1})
        assert counts.kept_leaks == {}

    def test_the_targets_are_the_assistants_words_and_their_end(self, outcome: Made) -> None:
        for line, (whole, targets) in outcome.examples().items():
            row = GOOD[line - 1] if line > 0 else rows(40, seed=4)[-line - 1]
            question, answer = (message["content"] for message in row["messages"])
            assert targets == f"{answer}<|im_end|>"
            assert (
                whole
                == f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
            )

    def test_three_samples_show_text_and_mask(self, outcome: Made) -> None:
        assert len(outcome.report.samples) == 3
        examples = outcome.examples()
        for sample in outcome.report.samples:
            assert "".join(segment.text for segment in sample.segments) == examples[sample.line][0]
            targets = "".join(segment.text for segment in sample.segments if segment.is_target)
            assert targets == examples[sample.line][1]

    def test_the_windows_hold_every_example_once_within_the_limit(self, outcome: Made) -> None:
        (entry,) = outcome.manifest.training
        part = load_file(outcome.order.output / entry.path)
        lengths = part["example_offsets"][1:] - part["example_offsets"][:-1]
        assert sorted(part["window_examples"].tolist()) == list(range(72))
        offsets = part["window_offsets"].tolist()
        sums = [int(lengths[part["window_examples"][start:end]].sum()) for start, end in pairwise(offsets)]
        assert max(sums) <= CONTEXT
        packing = outcome.report.packing
        assert packing is not None
        assert packing.fill_ratio == pytest.approx(sum(sums) / (len(sums) * CONTEXT), abs=1e-6)

    def test_the_holdout_is_named_as_a_source_with_its_grams(self, outcome: Made) -> None:
        sources_by_name = {
            source.name: (source.kind, source.contaminated_rows) for source in outcome.report.sources
        }
        assert sources_by_name == {"arc": ("benchmark", 1), "holdout": ("holdout", 1)}
        assert all(source.grams > 0 for source in outcome.report.sources)


async def test_equal_input_makes_equal_bytes_in_any_number_of_processes(bench: Bench) -> None:
    many = rows(700)
    one = await bench.run(many, validation=rows(20, seed=5))
    two = await bench.run(many, validation=rows(20, seed=5), workers=2)
    assert one.code == "ready"
    assert one.digests() == two.digests()
    assert one.manifest.report.sha256 == one.digests()["report.json"]


async def test_leaks_that_an_operator_keeps_are_counted_where_they_are_trained_on(bench: Bench) -> None:
    """Of the mix only the rows that are chosen count, and of files that are not trained on none."""
    leaks = rows(6, seed=99)
    outcome = await bench.run(
        [*GOOD, leaks[0]],
        spec={"share": 0.05, "policy": DatasetPolicy(contamination="keep")},
        holdout=leaks + rows(50, seed=2),
        validation=[*rows(9, seed=3), leaks[1]],
        safety_mix=leaks[2:],
    )
    assert outcome.manifest.counts.safety_rows == 3
    assert outcome.manifest.counts.kept_leaks == {"holdout": 4}


async def test_a_filter_that_would_take_much_of_a_file_refuses_it(bench: Bench) -> None:
    outcome = await bench.run([*rows(60), *rows(60)])
    assert outcome.code == "too_many_dropped"
    assert "60 of 120 rows of the training file are exact duplicates" in outcome.answer.message
    assert outcome.file("training").dropped_rows == {"exact_duplicates": 60}


async def test_weights_truncation_and_rows_without_a_target(bench: Bench) -> None:
    turns = [{"role": role, "content": f"{role} {n}"} for n in (1, 2) for role in ("user", "assistant")]
    turns[1]["weight"] = 0
    outcome = await bench.run(
        [
            {"messages": turns},
            chat("Go on.", sentence(random.Random(1), 300)),
            chat(sentence(random.Random(2), 300), "Too late."),
            chat("Unlearned.", "Never.", weight=0),
            chat("Go on for ever.", sentence(random.Random(3), 50_000)),
        ],
        spec={"policy": DatasetPolicy(truncation=True, max_bad_ratio=1.0)},
    )
    examples = outcome.examples()
    assert set(examples) == {1, 2, 5}
    assert examples[1][1] == "assistant 2<|im_end|>"
    assert outcome.report.lengths is not None
    assert outcome.report.lengths.maximum == CONTEXT
    assert [(each.line, each.rule) for each in outcome.file("training").problems] == [
        (3, "tokens.no_loss_token"),
        (4, "tokens.no_loss_token"),
    ]


async def test_prompt_and_completion_learn_the_completion_and_its_end(bench: Bench) -> None:
    outcome = await bench.run([{"prompt": f"heap{n} is", "completion": f" tree{n}"} for n in range(9)])
    assert outcome.manifest.format == "prompt_completion"
    assert outcome.examples()[3] == ("heap2 is tree2<|im_end|>", " tree2<|im_end|>")


@pytest.mark.parametrize(
    ("training", "row_format"),
    [
        ([{"prompt": "x", "chosen": "y", "rejected": "z"}, {"prompt": "x", "chosen": "y"}], "preference"),
        ([{"text": "Once upon a time."}, {"text": ""}], "text"),
    ],
)
async def test_rows_for_another_method_are_checked_and_then_refused_by_name(
    bench: Bench, training: list[Any], row_format: str
) -> None:
    outcome = await bench.run(training, spec={"method": Method.SFT})
    assert outcome.code == "wrong_format"
    assert outcome.answer.message.startswith(
        f"method sft trains on chat or prompt_completion rows, the training file has {row_format} rows"
    )
    assert [(each.file, each.line) for each in outcome.report.first_problems()] == [("training", 2)]


async def test_a_bad_holdout_row_refuses_the_dataset_and_is_named_with_its_file(bench: Bench) -> None:
    outcome = await bench.run(rows(5), holdout=[*rows(3, seed=6), chat("?", "")])
    assert outcome.code == "bad_rows"
    assert "1 of 4 rows of the holdout file are bad (chat.content_empty 1)" in outcome.answer.message
    (problem,) = outcome.report.first_problems()
    assert (problem.file, problem.line, problem.field) == ("holdout", 4, "messages[1].content")
    assert not (outcome.order.output / "manifest.json").exists()


async def test_a_template_other_than_the_registered_one_is_refused(bench: Bench) -> None:
    outcome = await bench.run(rows(3), template_sha256=a_sha("registered"))
    assert outcome.code == "template.changed"


class TestLimits:
    async def test_memory(self, bench: Bench) -> None:
        tight = GENEROUS.model_copy(update={"memory_bytes": 320 << 20})
        line = json.dumps(chat("x", "abc " * 16_000_000)).encode()
        order = bench.order(line, limits=tight, spec={"policy": DatasetPolicy(max_row_bytes=1 << 30)})
        answer = await carry_out(order)
        assert isinstance(answer, LimitExceeded)
        assert answer.resource == "memory"

    async def test_processor_time(self, bench: Bench) -> None:
        answer = await carry_out(bench.order(rows(3), limits=GENEROUS.model_copy(update={"cpu_seconds": 1})))
        assert isinstance(answer, LimitExceeded)
        assert answer.resource == "cpu"

    async def test_file_size(self, bench: Bench) -> None:
        answer = await carry_out(
            bench.order(rows(50), limits=GENEROUS.model_copy(update={"file_bytes": 4096}))
        )
        assert isinstance(answer, LimitExceeded)
        assert answer.resource == "file"

    async def test_time_by_the_clock_ends_the_process(self, bench: Bench) -> None:
        order = bench.order(rows(3))
        answer = await carry_out(order, seconds=0.2)
        assert isinstance(answer, LimitExceeded)
        assert answer.resource == "time"

    def test_hostile_lines_stay_below_a_gigabyte_and_good_ones_beside_them_are_kept(
        self, bench: Bench
    ) -> None:
        cap = 4 << 20
        hostile = [
            b"[" * cap,
            b'{"messages": ' + b'[{"a":' * (cap // 6),
            b'{"messages": [' + b"{}," * (cap // 3 - 10) + b"{}]}",
            b"x" * (64 << 20),
            json.dumps(chat("q", "\u4f60" * (cap // 6 - 100))).encode(),
            json.dumps(chat("q", "a" * (cap - 200))).encode(),
            json.dumps(chat(" ".join(map(str, range(500_000))), "b")).encode(),
        ]
        content = b"\n".join([*hostile, *(json.dumps(row).encode() for row in rows(100))])
        order = bench.order(content, spec={"policy": DatasetPolicy(max_bad_ratio=0.5)})
        path = order.output.parent / "order.json"
        path.write_text(order.model_dump_json())
        command = [sys.executable, "-m", "services.ingest.pipeline", str(path)]
        process = subprocess.run(
            [sys.executable, "-c", MEASURED, *command],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        )
        code, peak_kib = map(int, process.stdout.split())
        assert code == 0
        assert peak_kib < 1 << 20, f"{peak_kib} KiB"
        outcome = Made(order, Finished(code="ready", message=""))
        assert outcome.file("training").rejected_rows == len(hostile)
        assert set(outcome.examples()) == set(range(8, 108))

    @pytest.mark.parametrize(
        "attempt",
        [
            "import socket; socket.socket()",
            "import subprocess; subprocess.run(['true'])",
            "import os; os.system('true')",
        ],
    )
    def test_no_socket_and_no_program(self, attempt: str) -> None:
        code = (
            "from shared.processes.limits import confine\n"
            f"confine(memory_bytes={4 << 30}, cpu_seconds=60, file_bytes=1000)\n{attempt}\nprint('did it')"
        )
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        assert run.returncode != 0
        assert "opens no socket and starts no program" in run.stderr
