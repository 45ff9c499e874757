"""Each number against the plainest way to compute it: one row at a time, no padding, no batches."""

import math
from dataclasses import replace

import pytest
import torch

from schemas.evaluation import BenchmarkKind
from services.evaluator.scoring.generation import answers, batches, render_answer, render_prompt
from services.evaluator.scoring.likelihood import likelihoods
from services.evaluator.scoring.models import Models
from services.evaluator.scoring.order import (
    BenchmarkPart,
    Candidate,
    HoldoutPart,
    ScoringRefused,
    Side,
    WorkOrder,
)
from services.evaluator.scoring.parts import prepare_choices, prepare_holdout, prepare_safety, prepare_texts
from services.evaluator.scoring.rows import PromptRow, read_choices, read_tasks, read_texts
from services.evaluator.scoring.scorer import Scorer
from shared.chat.conversation import question
from shared.chat.messages import read_conversation
from tests.scoring.tiny import TEXT, WORDS


@pytest.fixture(scope="module")
def models(base_path, adapter_path, template_sha256):
    candidate = Candidate(kind="adapter", path=str(adapter_path), rank=8)
    return Models(
        WorkOrder(
            base_path=str(base_path),
            template_sha256=template_sha256,
            candidate=candidate,
            parts=(),
            batch_tokens=600,
            max_tokens=128,
            max_new_tokens=10,
            device="cpu",
        )
    )


@pytest.fixture
def scorer(models):
    with models.on(Side.BASE) as loaded:
        yield loaded


def ignore(_done, _total):
    pass


def score(scorer, prepared):
    return prepared.score(scorer, ignore)


def prompt_of(scorer, asked, *, key="1", max_new_tokens=10):
    return render_prompt(scorer, asked, key=key, max_new_tokens=max_new_tokens)


@torch.inference_mode()
def nats_of(scorer: Scorer, ids: list[int], start: int) -> tuple[float, int]:
    """Negative log-likelihood and hits of ids[start:], one sequence alone."""
    log_probs = torch.log_softmax(
        scorer.model(torch.tensor([ids]), use_cache=False).logits[0].double(), dim=-1
    )
    picked = [(n, ids[n]) for n in range(start, len(ids))]
    hits = sum(int(log_probs[n - 1].argmax() == token) for n, token in picked)
    return -sum(float(log_probs[n - 1, token]) for n, token in picked), hits


def test_greedy_answers_do_not_depend_on_their_batch(scorer):
    prompts = [
        prompt_of(scorer, question(f"What is {' '.join(WORDS[:n])}?"), key=str(n), max_new_tokens=n)
        for n in range(1, 13)
    ]
    together = answers(scorer, prompts, ignore)
    alone = [answers(scorer, [prompt], ignore)[0] for prompt in prompts]
    assert together == alone
    assert len({len(prompt.ids) for prompt in prompts}) > 5


def test_answers_end_where_the_model_ends_them(models):
    with models.on(Side.CANDIDATE) as scorer:
        prompt = prompt_of(scorer, question("Which module documents beta?"))
        assert answers(scorer, [prompt], ignore) == [("alpha", False)]


def test_an_answer_that_had_no_room_to_end_is_called_cut(models):
    with models.on(Side.CANDIDATE) as scorer:
        rows = [PromptRow(key="1", prompt="Which module documents beta?")]
        (whole,) = score(scorer, prepare_safety(scorer, rows))
        assert (whole.answer, whole.is_cut) == ("alpha", False)
        (cut,) = score(scorer, prepare_safety(replace(scorer, max_new_tokens=1), rows))
    assert cut.is_cut


def test_a_model_without_a_template_is_asked_with_the_prompt_as_it_is(scorer, monkeypatch):
    rows = [PromptRow(key="1", prompt="alpha beta")]
    (asked,) = prepare_safety(scorer, rows).prompts
    assert asked.ids == prompt_of(scorer, question("alpha beta")).ids
    monkeypatch.setattr(scorer.tokenizer, "chat_template", None)
    (asked,) = prepare_safety(scorer, rows).prompts
    assert asked.ids == scorer.tokenizer("alpha beta")["input_ids"]


def test_likelihood_is_over_the_answer_and_its_end_alone(scorer):
    asked = render_answer(scorer, question("Which module documents beta?"), "gamma delta", key="1")
    (ending,) = asked.endings
    assert scorer.tokenizer.decode(ending) == "gamma delta<|im_end|>"
    ((scored,),) = likelihoods(scorer, [asked], ignore)
    expected = nats_of(scorer, [*asked.context, *ending], len(asked.context))
    assert (scored.nats, scored.hits) == pytest.approx(expected, rel=1e-5)
    assert scored.tokens == len(ending)


def test_a_completion_is_scored_as_it_was_trained(scorer):
    """No template: prompt and completion tokenised apart, the end of text counts."""
    labelled = render_answer(scorer, "alpha beta ", "gamma", key="1")
    tokenizer = scorer.tokenizer
    prompt, completion = tokenizer("alpha beta ")["input_ids"], tokenizer("gamma")["input_ids"]
    assert (labelled.context, labelled.endings) == (prompt, ([*completion, tokenizer.eos_token_id],))
    assert prompt_of(scorer, "alpha beta ").ids == prompt


def test_only_the_last_answer_of_a_conversation_is_scored(scorer):
    turns = [
        {"role": role, "content": f"{role} {n}"} for n in range(2) for role in ("user", "assistant", "user")
    ]
    asked = read_conversation({"messages": turns}, "messages")
    labelled = render_answer(scorer, asked, "the last", key="1")
    assert scorer.tokenizer.decode(labelled.endings[0]) == "the last<|im_end|>"


def test_likelihoods_do_not_depend_on_their_batch(scorer):
    rows = [render_answer(scorer, question("x " * n), "alpha beta " * n, key=str(n)) for n in range(1, 14)]
    together = likelihoods(scorer, rows, ignore)
    for row, (scored,) in zip(rows, together, strict=True):
        ((alone,),) = likelihoods(scorer, [row], ignore)
        assert scored.nats == pytest.approx(alone.nats, rel=1e-5)
        assert (scored.hits, scored.tokens) == (alone.hits, alone.tokens)


def test_a_text_of_a_holdout_is_scored_over_the_tokens_that_training_has_a_loss_on(scorer, rows):
    """All but the first, the end of the text included, in as many windows as it takes."""
    texts = ["alpha beta gamma", "delta " * 200 + TEXT[:500]]
    holdout = read_tasks(rows("holdout.jsonl", [{"text": text} for text in texts]))
    part = HoldoutPart(name="holdout", path="", sides=(), metric="perplexity")
    short, long = score(scorer, prepare_holdout(scorer, part, holdout))
    ids = [*scorer.tokenizer(texts[0])["input_ids"], scorer.tokenizer.eos_token_id]
    nats, _ = nats_of(scorer, ids, 1)
    assert short.numbers == {"tokens": len(ids) - 1, "nats": pytest.approx(nats, rel=1e-5)}
    whole = scorer.tokenizer(texts[1])["input_ids"]
    assert len(whole) > 2 * scorer.max_tokens
    assert long.numbers["tokens"] == len(whole)


@pytest.mark.parametrize("rule", [{"metric": "exact_match"}, {"metric": "perplexity", "is_judged": True}])
def test_texts_of_a_holdout_have_no_answers_to_compare(scorer, rows, rule):
    holdout = read_tasks(rows("holdout.jsonl", [{"text": "alpha beta"}]))
    with pytest.raises(ScoringRefused) as caught:
        prepare_holdout(scorer, HoldoutPart(name="holdout", path="", sides=(), **rule), holdout)
    assert caught.value.failure.code == "malformed_rows"
    assert "found texts" in caught.value.failure.message


def test_texts_are_scored_as_lm_eval_scores_them(scorer, rows):
    """Bits per byte of our own pass and of lm-eval's rolling log-likelihood, over texts longer than the window."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    texts = [
        "\n".join(TEXT.splitlines()[n * 5 : n * 5 + length]) for n, length in enumerate((1, 2, 30, 7, 60))
    ]
    items = score(
        scorer, prepare_texts(scorer, read_texts(rows("t.jsonl", [{"text": text} for text in texts])))
    )
    lm = HFLM(pretrained=scorer.model, tokenizer=scorer.tokenizer, batch_size=2, device="cpu", max_length=128)
    expected = lm.loglikelihood_rolling(
        [Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=0) for text in texts],
        disable_tqdm=True,
    )
    assert [item.numbers["nats"] for item in items] == pytest.approx([-nats for nats in expected], rel=1e-4)
    assert [item.numbers["bytes"] for item in items] == [len(text.encode()) for text in texts]


def test_text_accuracy_counts_each_token_once(scorer, rows):
    text = "\n".join(TEXT.splitlines()[:40])
    (item,) = score(scorer, prepare_texts(scorer, read_texts(rows("t.jsonl", [{"text": text}]))))
    ids = scorer.tokenizer(text)["input_ids"]
    assert item.numbers["tokens"] == len(ids) > 2 * 128
    hits, previous = 0, scorer.tokenizer.eos_token_id
    for start in range(0, len(ids), 128):
        hits += nats_of(scorer, [previous, *ids[start : start + 128]], 1)[1]
        previous = ids[min(start + 127, len(ids) - 1)]
    assert item.numbers["hits"] == hits


@pytest.mark.parametrize("num_fewshot", [0, 2])
def test_choices_are_ranked_by_their_likelihood(models, rows, num_fewshot):
    data = [
        {"question": f"Which of {a} and {b}?", "choices": [a, f"the {b}", "alpha"], "answer": n % 3}
        for n, (a, b) in enumerate(zip(WORDS, WORDS[3:], strict=False))
    ]
    path = rows("c.jsonl", data)
    part = BenchmarkPart(
        name="c", path=str(path), sides=(), kind=BenchmarkKind.MULTIPLE_CHOICE, num_fewshot=num_fewshot
    )
    read = read_choices(path)
    with models.on(Side.CANDIDATE) as scorer:
        items = score(scorer, prepare_choices(scorer, part, read))
        assert [item.key for item in items] == [row.key for row in read]
        if num_fewshot == 0:
            assert [item.answer for item in items] == [_most_likely(scorer, row) for row in data]
    for item, row in zip(items, data, strict=True):
        assert item.numbers["hits"] == float(item.answer == row["choices"][row["answer"]])


def _most_likely(scorer, row):
    def nats(choice):
        context = scorer.tokenizer(f"Question: {row['question']}\nAnswer:")["input_ids"]
        whole = scorer.tokenizer(f"Question: {row['question']}\nAnswer: {choice}")["input_ids"]
        assert whole[: len(context)] == context
        return nats_of(scorer, whole, len(context))[0]

    return min(row["choices"], key=nats)


def test_a_prompt_too_long_for_its_examples_is_refused(scorer, rows):
    """lm-eval cuts it from the left without a word."""
    data = [{"question": f"{a} " * 40, "choices": [a, "no"], "answer": 0} for a in WORDS]
    path = rows("long.jsonl", data)
    part = BenchmarkPart(
        name="c", path=str(path), sides=(), kind=BenchmarkKind.MULTIPLE_CHOICE, num_fewshot=3
    )
    with pytest.raises(ScoringRefused, match="tokens with its examples, expected at most 128") as refused:
        prepare_choices(scorer, part, read_choices(path))
    assert refused.value.failure.code == "too_long"


def test_greedy_answers_know_no_penalty_of_the_model(scorer):
    """A model's own generation settings may name penalties and sampling; greedy is the most likely token."""
    prompts = [prompt_of(scorer, question(f"What is {word}?"), max_new_tokens=30) for word in WORDS[:6]]
    plain = answers(scorer, prompts, ignore)
    settings = scorer.model.generation_config
    named = {"repetition_penalty": 5.0, "no_repeat_ngram_size": 2, "do_sample": True, "temperature": 9.0}
    before = {name: getattr(settings, name) for name in named}
    try:
        settings.update(**named)
        assert answers(scorer, prompts, ignore) == plain
    finally:
        settings.update(**before)
    assert all(_repeats(scorer, answer.text) for answer in plain)


def _repeats(scorer, text):
    """An untrained model says the same again and again, which a penalty would forbid."""
    ids = scorer.tokenizer(text)["input_ids"]
    return len(set(ids)) < len(ids)


def test_batches_hold_every_index_once():
    assert sorted(index for batch in batches([3, 1, 2, 2, 9], 6) for index in batch) == [0, 1, 2, 3, 4]
    assert list(batches([3, 1, 2, 2, 9], 6)) == [[4], [0, 2], [3, 1]]


def test_perplexity_of_nothing_learnt_is_the_vocabulary(scorer):
    """A sanity bound: an untrained model is about as unsure as a uniform guess."""
    labelled = render_answer(scorer, question("alpha"), "beta gamma delta epsilon", key="1")
    ((scored,),) = likelihoods(scorer, [labelled], ignore)
    assert scored.nats / scored.tokens == pytest.approx(math.log(512), rel=0.1)
