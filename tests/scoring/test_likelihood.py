"""What is shared between endings and questions changes no number, and all of them are lm-eval's."""

import hashlib
import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from schemas.evaluation import BenchmarkKind
from services.evaluator.scoring import likelihood
from services.evaluator.scoring.harness import OWN_TASK, ask_choices, choice_item
from services.evaluator.scoring.likelihood import Question, likelihoods
from services.evaluator.scoring.models import Models
from services.evaluator.scoring.order import BenchmarkPart, Candidate, Side, WorkOrder
from services.evaluator.scoring.parts import prepare, read_rows
from services.evaluator.scoring.rows import read_benchmark
from services.evaluator.scoring.sharing import tokens_that_share
from tests.families import build_family
from tests.scoring.tiny import WORDS
from tests.tiny_model import template_text


@pytest.fixture(scope="module")
def models(base_path, adapter_path, template_sha256):
    candidate = Candidate(kind="adapter", path=str(adapter_path), rank=8)
    order = WorkOrder(
        base_path=str(base_path), template_sha256=template_sha256, candidate=candidate, parts=()
    )
    return Models(order)


@pytest.fixture
def scorer(models):
    with models.on(Side.CANDIDATE) as loaded:
        yield loaded


def ignore(_done, _total):
    pass


def flat(scores):
    return [ending.nats for endings in scores for ending in endings]


def tokens(count, start=7):
    return [(start + 31 * n * n) % 500 + 3 for n in range(count)]


QUESTIONS = [
    Question(tokens(60) + tokens(n, n), (tokens(1, n), tokens(5, n), tokens(9, 2 * n))) for n in range(1, 12)
] + [Question(tokens(n, 99), (tokens(3), tokens(2, 5))) for n in (1, 2, 40)]


def test_the_model_is_proved_to_allow_sharing(scorer):
    assert scorer.shared_tokens == scorer.max_tokens == 512


@pytest.mark.parametrize("forward_tokens", [1, 200, 4096])
def test_shared_questions_score_as_each_ending_alone(scorer, forward_tokens):
    alone = [
        likelihoods(replace(scorer, shared_tokens=0), [Question(question.context, (ending,))], ignore)
        for question in QUESTIONS
        for ending in question.endings
    ]
    expected = [nats for each in alone for nats in flat(each)]
    shared = likelihoods(replace(scorer, forward_tokens=forward_tokens), QUESTIONS, ignore)
    assert flat(shared) == pytest.approx(expected, rel=1e-6)
    assert [len(endings) for endings in shared] == [len(question.endings) for question in QUESTIONS]


def test_logits_in_chunks_are_the_same_logits(scorer, monkeypatch):
    whole = likelihoods(scorer, QUESTIONS, ignore)
    monkeypatch.setattr(likelihood, "LOGITS_PER_CHUNK", 3 * 512)
    monkeypatch.setattr(likelihood, "LOGITS_PER_BATCH", 20 * 512)
    assert flat(likelihoods(scorer, QUESTIONS, ignore)) == pytest.approx(flat(whole), rel=1e-6)


def test_each_ending_is_reported(scorer):
    done = []
    likelihoods(scorer, QUESTIONS, lambda just_done, total: done.append((just_done, total)))
    total = sum(len(question.endings) for question in QUESTIONS)
    assert sum(just_done for just_done, _ in done) == total
    assert {of for _, of in done} == {total}


def test_a_model_that_ignores_the_mask_shares_nothing(scorer):
    """As one of a kind would whose attention takes no mask of ours."""

    class Deaf(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model, self.config = model, model.config

        def get_output_embeddings(self):
            return self.model.get_output_embeddings()

        def forward(self, attention_mask=None, **inputs):
            if attention_mask is not None and attention_mask.dim() == 4:
                attention_mask = None
            return self.model(attention_mask=attention_mask, **inputs)

    deaf = replace(scorer, model=Deaf(scorer.model), shared_tokens=0)
    assert tokens_that_share(scorer, tokens(20)) == 512
    assert tokens_that_share(deaf, tokens(20)) == 0


def test_nothing_is_shared_beyond_a_sliding_window(scorer):
    config = scorer.model.config
    config.sliding_window = 80
    try:
        assert tokens_that_share(scorer, tokens(20)) == 80
    finally:
        del config.sliding_window


ARC = [
    {"id": str(n), "question": f"Which of {a} and {b}?", "answerKey": "ABC"[n % 3],
     "choices": {"text": [a, f"the {b}", "alpha beta gamma"], "label": ["A", "B", "C"]}}
    for n, (a, b) in enumerate(zip(WORDS, WORDS[3:], strict=False))
]  # fmt: skip
ARC_AS_PUBLISHED = [
    {"id": f"Mercury_{n}", "question": f"Which  of {a} is “{b}”?\n(µ, 0 °C)", "answerKey": labels[n % len(labels)],
     "choices": {"text": [f"{label}: {word}" for label, word in zip(labels, (a, b, "alpha", "beta.", "Ωmega"), strict=False)],
                 "label": list(labels)}}
    for n, (a, b) in enumerate(zip(WORDS, WORDS[4:], strict=False))
    for labels in [("ABC", "ABCD", "1234", "ABCDE")[n % 4]]
]  # fmt: skip
"""Three to five choices, letters or digits for labels, and signs of every kind, as in the published file."""
HELLASWAG = [
    {"activity_label": "Reading", "ctx_a": f"The {a} module [title] is open.", "ctx_b": f"then {b}",
     "endings": [f"documents {a}.", f"steals [step] the {b}", "is it?", f"{a}  and {b} end here"], "label": str(n % 4)}
    for n, (a, b) in enumerate(zip(WORDS, WORDS[5:], strict=False))
]  # fmt: skip
MMLU = [
    {"question": f" Where is {a}? ", "subject": ("anatomy", "virology")[n % 2], "choices": [a, b, "mu", "nu"],
     "answer": n % 4}
    for n, (a, b) in enumerate(zip(WORDS, WORDS[2:], strict=False))
]  # fmt: skip
TRUTHFUL = [
    {"question": f"Is {a} {b}?",
     "mc1_targets": {"choices": ["yes", f"no {a}", f"{b} it is"], "labels": [1, 0, 0]},
     "mc2_targets": {"choices": ["yes", f"no {a}", f"{b} it is", "maybe"], "labels": [1, 1, 0, 0]}}
    for a, b in zip(WORDS[:6], WORDS[2:], strict=False)
]  # fmt: skip
PUBLISHED = [
    (BenchmarkKind.ARC_CHALLENGE, "arc/arc_challenge.yaml", ARC, 0, {}),
    (BenchmarkKind.ARC_CHALLENGE, "arc/arc_challenge.yaml", ARC, 3, {"test": ARC[:8], "train": ARC[8:]}),
    (
        BenchmarkKind.ARC_CHALLENGE,
        "arc/arc_challenge.yaml",
        ARC_AS_PUBLISHED,
        3,
        {"test": ARC_AS_PUBLISHED[:9], "train": ARC_AS_PUBLISHED[9:]},
    ),
    (BenchmarkKind.HELLASWAG, "hellaswag/hellaswag.yaml", HELLASWAG, 0, {}),
    (
        BenchmarkKind.HELLASWAG,
        "hellaswag/hellaswag.yaml",
        HELLASWAG,
        2,
        {"validation": HELLASWAG[:8], "train": HELLASWAG[8:]},
    ),
    (BenchmarkKind.TRUTHFULQA_MC1, "truthfulqa/truthfulqa_mc1.yaml", TRUTHFUL, 0, {}),
    (BenchmarkKind.TRUTHFULQA_MC2, "truthfulqa/truthfulqa_mc2.yaml", TRUTHFUL, 0, {}),
]


@pytest.mark.parametrize(("kind", "definition", "rows_of", "num_fewshot", "splits"), PUBLISHED)
def test_published_benchmarks_score_as_lm_eval_scores_them(
    scorer, rows, kind, definition, rows_of, num_fewshot, splits
):
    """lm-eval's own task, model and loop on the same rows: each likelihood and each metric."""
    # The prompt of TruthfulQA alone has over 500 of this tokenizer's tokens.
    scorer = replace(scorer, max_tokens=768, shared_tokens=768)
    asked_split = "test" if kind is BenchmarkKind.ARC_CHALLENGE else "validation"
    splits = splits or {asked_split: rows_of}
    expected = by_lm_eval(scorer, definition, splits, num_fewshot=num_fewshot)
    read = read_benchmark(rows("asked.jsonl", splits[asked_split]), kind)
    examples = read_benchmark(rows("examples.jsonl", splits["train"]), kind) if num_fewshot else ()
    asked = ask_choices(scorer, kind, read, num_fewshot=num_fewshot, examples=examples)
    scored = likelihoods(scorer, [row.question for row in asked], ignore)
    assert [-nats for nats in flat(scored)] == pytest.approx([ll for ll, _ in expected["ll"]], rel=1e-6)
    items = [choice_item(kind, *pair) for pair in zip(asked, scored, strict=True)]
    main = "acc_norm" if kind in (BenchmarkKind.ARC_CHALLENGE, BenchmarkKind.HELLASWAG) else "acc"
    mean = sum(item.numbers["hits"] for item in items) / len(items)
    assert mean == pytest.approx(expected["results"][f"{main},none"], rel=1e-6)


def test_mmlu_is_asked_by_subject_with_its_first_examples(scorer, rows):
    read = read_benchmark(rows("asked.jsonl", MMLU[:9]), BenchmarkKind.MMLU)
    examples = read_benchmark(rows("dev.jsonl", MMLU[9:]), BenchmarkKind.MMLU)
    asked = ask_choices(scorer, BenchmarkKind.MMLU, read, num_fewshot=2, examples=examples)
    assert [row.row for row in asked] == list(read)
    scored = likelihoods(scorer, [row.question for row in asked], ignore)
    for subject in ("anatomy", "virology"):
        splits = {
            "test": [row for row in MMLU[:9] if row["subject"] == subject],
            "dev": [row for row in MMLU[9:] if row["subject"] == subject],
        }
        expected = by_lm_eval(scorer, f"mmlu/default/mmlu_{subject}.yaml", splits, num_fewshot=2)
        mine = [ends for row, ends in zip(asked, scored, strict=True) if row.row.subject == subject]
        assert [-nats for nats in flat(mine)] == pytest.approx([ll for ll, _ in expected["ll"]], rel=1e-6)
        hits = [
            choice_item(BenchmarkKind.MMLU, row, ends).numbers["hits"]
            for row, ends in zip(asked, scored, strict=True)
            if row.row.subject == subject
        ]
        assert sum(hits) / len(hits) == pytest.approx(expected["results"]["acc,none"])


def test_rows_of_our_own_have_the_first_examples_of_their_file(scorer, rows):
    """As a task of lm-eval's has them that names `first_n`; with lm-eval's own seeds where examples are drawn."""
    own = [
        {"question": f"Which of {a} and {b}?", "choices": [a, f"the {b}", "alpha"], "answer": n % 3}
        for n, (a, b) in enumerate(zip(WORDS, WORDS[3:], strict=False))
    ]
    asked, examples = own[:9], own[9:]
    part = BenchmarkPart(
        name="own",
        path=str(rows("asked.jsonl", asked)),
        sides=(),
        kind=BenchmarkKind.MULTIPLE_CHOICE,
        num_fewshot=4,
        examples_path=str(rows("examples.jsonl", examples)),
    )
    prepared = prepare(scorer, part, read_rows(part))
    definition = OWN_TASK | {"fewshot_split": "examples", "fewshot_config": {"sampler": "first_n"}}
    splits = {"test": asked, "examples": examples}
    expected = by_lm_eval(scorer, definition, splits, num_fewshot=4)
    scored = likelihoods(scorer, prepared.questions, ignore)
    assert [-nats for nats in flat(scored)] == pytest.approx([ll for ll, _ in expected["ll"]], rel=1e-6)
    means = {
        name: sum(item.numbers[name] for item in prepared.items(scored, [])) / len(asked)
        for name in ("accuracy", "normalised_accuracy")
    }
    assert means["accuracy"] == pytest.approx(expected["results"]["acc,none"])
    assert means["normalised_accuracy"] == pytest.approx(expected["results"]["acc_norm,none"])


def by_lm_eval(scorer, definition, splits, *, num_fewshot):
    import lm_eval
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._yaml_loader import load_yaml

    from services.evaluator.scoring.harness import TASKS

    config = load_yaml(TASKS / definition) if isinstance(definition, str) else dict(definition)
    for name in ("training_split", "validation_split", "test_split", "fewshot_split"):
        if config.get(name) not in splits:
            config[name] = None
    data = {name: Dataset.from_list(json.loads(json.dumps(rows))) for name, rows in splits.items()}
    config |= {"dataset_path": "", "dataset_name": None, "custom_dataset": lambda **_: data, "metadata": None}
    lm = HFLM(
        pretrained=scorer.model,
        tokenizer=scorer.tokenizer,
        batch_size=3,
        device="cpu",
        max_length=scorer.max_tokens,
    )
    results = lm_eval.simple_evaluate(
        model=lm,
        tasks=[ConfigurableTask(config=config)],
        # Otherwise it reads its 13,000 definitions first, each time.
        task_manager=TaskManager(include_defaults=False),
        num_fewshot=num_fewshot,
        bootstrap_iters=0,
        log_samples=True,
    )
    (name,) = results["results"]
    samples = sorted(results["samples"][name], key=lambda sample: sample["doc_id"])
    return {
        "ll": [tuple(response) for sample in samples for response in sample["filtered_resps"]],
        "results": results["results"][name],
    }


def test_a_cap_of_attention_scores_is_part_of_what_a_model_says(tmp_path):
    """PyTorch's own attention leaves it out."""
    base = build_family(tmp_path / "base", "Gemma 2")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"attn_logit_softcapping": 0.1}))
    candidate = Candidate(kind="full", path=str(base), rank=0)
    template = hashlib.sha256(template_text(base).encode()).hexdigest()
    order = WorkOrder(base_path=str(base), template_sha256=template, candidate=candidate, parts=())
    ids = torch.tensor([tokens(40)])
    with Models(order).on(Side.BASE) as scorer, torch.no_grad():
        scored = scorer.model(ids).logits
    with torch.no_grad():
        capped, uncapped = (
            AutoModelForCausalLM.from_pretrained(base, attn_implementation=attention)(ids).logits
            for attention in ("eager", "sdpa")
        )
    assert torch.allclose(scored, capped, atol=1e-5)
    assert not torch.allclose(uncapped, capped, atol=1e-2)
