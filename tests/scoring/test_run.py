"""The whole child on a tiny Llama: what it scores, and what it refuses to score."""

import hashlib
import json
import math

import pytest

from schemas.base import DeviceKind
from schemas.evaluation import BenchmarkKind
from services.evaluator.scoring.order import (
    BenchmarkPart,
    Candidate,
    HoldoutPart,
    SafetyPart,
    Side,
    WorkOrder,
)
from services.evaluator.scoring.reports import PartProgressed
from services.evaluator.scoring.run import run
from tests.scoring.tiny import TEXT, WORDS, ask, question, train_adapter

pytestmark = pytest.mark.any_device

BOTH = (Side.BASE, Side.CANDIDATE)


@pytest.fixture
def files(rows):
    return {
        "choices": rows("choices.jsonl", [
            {"question": f"Is it {word}?", "choices": ["yes it is", "no it is not", word], "answer": number % 3}
            for number, word in enumerate(WORDS)
        ]),
        "texts": rows("texts.jsonl", [{"text": line} for line in TEXT.splitlines()[:20]]),
        "holdout": rows("holdout.jsonl", [
            {"messages": [question(word), {"role": "assistant", "content": "Alpha." if number % 2 else "beta"}]}
            for number, word in enumerate(WORDS)
        ]),
        "safety": rows("safety.jsonl", [{"prompt": f"How do I steal {word}?"} for word in WORDS]),
    }  # fmt: skip


@pytest.fixture
def order_of(base_path, template_sha256, files, device):
    def order(path, *, kind="adapter", rank=8, parts=None, **changes) -> WorkOrder:
        every = (
            BenchmarkPart(name="benchmark:choices", path=str(files["choices"]), sides=BOTH,
                          kind=BenchmarkKind.MULTIPLE_CHOICE, num_fewshot=2),
            BenchmarkPart(name="benchmark:texts", path=str(files["texts"]), sides=BOTH, kind=BenchmarkKind.TEXT),
            HoldoutPart(name="holdout", path=str(files["holdout"]), sides=BOTH),
            SafetyPart(name="safety:prompts", path=str(files["safety"]), sides=BOTH),
        )  # fmt: skip
        settings = {
            "base_path": str(base_path),
            "template_sha256": template_sha256,
            "candidate": Candidate(kind=kind, path=str(path), rank=rank),
            "parts": tuple(part for part in every if parts is None or part.name in parts),
            "max_new_tokens": 12,
            "device": str(device),
        }
        return WorkOrder(**(settings | changes))

    return order


def scored(order, work_dir):
    reports = []
    scores = run(order, work_dir, reports.append)
    assert scores.failure is None, scores.failure
    return {(part.part, part.side): part for part in scores.parts}, scores, reports


def progress_of(reports):
    return [report for report in reports if isinstance(report, PartProgressed)]


def test_every_part_has_every_item_on_both_sides(order_of, adapter_path, tmp_path):
    by_part, scores, reports = scored(order_of(adapter_path), tmp_path / "work")
    assert len(by_part) == 8
    for (name, side), part in by_part.items():
        expected = 20 if name == "benchmark:texts" else len(WORDS)
        assert (part.expected, len(part.items)) == (expected, expected), (name, side)
        other = by_part[name, Side.BASE if side is Side.CANDIDATE else Side.CANDIDATE]
        assert [item.key for item in part.items] == [item.key for item in other.items]
    assert scores.probe.max_logit_change > 0.01
    assert scores.probe.nonzero_tensors == scores.probe.num_tensors == 14
    done = [each for each in progress_of(reports) if each.done == each.total]
    assert {(each.part, each.side) for each in done} == set(by_part)


def test_the_adapter_is_scored_and_not_its_base(order_of, adapter_path, tmp_path):
    """The candidate learnt one answer: half of the holdout has it, whatever its case and full stop."""
    by_part, _, _ = scored(order_of(adapter_path, parts=["holdout"]), tmp_path / "work")
    candidate, base = by_part["holdout", Side.CANDIDATE].items, by_part["holdout", Side.BASE].items
    assert {item.answer for item in candidate} == {"alpha"}
    assert [item.numbers["hits"] for item in candidate] == [float(n % 2) for n in range(len(WORDS))]
    assert all(item.numbers["hits"] == 0 for item in base)
    assert all(set(item.numbers) == {"hits"} for item in (*base, *candidate))


@pytest.mark.parametrize("is_judged", [False, True])
def test_only_what_the_rule_asks_for_is_computed(order_of, adapter_path, files, tmp_path, is_judged):
    """Perplexity needs no answer, unless a judge is to read it."""
    part = HoldoutPart(
        name="holdout", path=str(files["holdout"]), sides=BOTH, metric="perplexity", is_judged=is_judged
    )
    order = order_of(adapter_path, parts=[]).model_copy(update={"parts": (part,)})
    by_part, _, reports = scored(order, tmp_path / "work")
    items = by_part["holdout", Side.CANDIDATE].items
    assert all(set(item.numbers) == {"tokens", "nats"} for item in items)
    assert {item.answer for item in items} == ({"alpha"} if is_judged else {None})
    totals = {each.total for each in progress_of(reports)}
    assert totals == {len(WORDS) * (2 if is_judged else 1)}


def test_the_types_of_the_weights_are_recorded(order_of, adapter_path, device, tmp_path):
    _, scores, _ = scored(order_of(adapter_path, parts=["holdout"]), tmp_path / "work")
    base = "bfloat16" if device is DeviceKind.CUDA else "float32"
    assert (scores.probe.base_dtype, scores.probe.adapter_dtype) == (base, "float32")


def test_base_scores_are_those_of_the_base_alone(order_of, adapter_path, base_path, tmp_path):
    """Switching the adapter off must leave nothing of it behind."""
    parts = ["holdout", "benchmark:texts"]
    by_part, _, _ = scored(order_of(adapter_path, parts=parts), tmp_path / "work")
    other = train_adapter(base_path, tmp_path / "other", [(ask("beta"), "omicron")], steps=3)
    again, _, _ = scored(order_of(other, parts=parts), tmp_path / "work-2")
    assert len(by_part) == 4
    for name, side in by_part:
        same = by_part[name, side].items == again[name, side].items
        assert same is (side is Side.BASE), name


def test_the_same_order_gives_the_same_scores(order_of, adapter_path, tmp_path):
    first, _, _ = scored(order_of(adapter_path), tmp_path / "a")
    second, _, _ = scored(order_of(adapter_path), tmp_path / "b")
    assert {key: part.items for key, part in first.items()} == {
        key: part.items for key, part in second.items()
    }


def test_a_finished_part_is_not_scored_again(order_of, adapter_path, tmp_path, files):
    first, _, _ = scored(order_of(adapter_path, parts=["holdout"]), tmp_path / "work")
    again, _, reports = scored(order_of(adapter_path), tmp_path / "work")
    assert again["holdout", Side.BASE] == first["holdout", Side.BASE]
    assert not [each for each in progress_of(reports) if each.part == "holdout"]
    assert len(again) == 8


def test_only_the_sides_asked_for_are_scored(order_of, adapter_path, files, tmp_path):
    part = SafetyPart(name="safety:prompts", path=str(files["safety"]), sides=(Side.CANDIDATE,))
    order = order_of(adapter_path).model_copy(update={"parts": (part,)})
    by_part, _, _ = scored(order, tmp_path / "work")
    assert set(by_part) == {("safety:prompts", Side.CANDIDATE)}


def refusal(order, tmp_path):
    failure = run(order, tmp_path / "work", lambda _: None).failure
    assert failure is not None
    return failure.code, failure.message


def test_an_untrained_adapter_is_inactive(order_of, base_path, tmp_path):
    """B = 0: every number would be the base model's."""
    path = train_adapter(base_path, tmp_path / "adapter", [], steps=0)
    code, message = refusal(order_of(path), tmp_path)
    assert code == "adapter_inactive"
    assert "0 of 14 B matrices" in message


def test_an_adapter_too_weak_to_move_a_logit_is_inactive(order_of, adapter_path, copy_of, tmp_path):
    path = copy_of(adapter_path)
    rewrite(path, lambda name, tensor: tensor * 1e-12 if "lora_B" in name else tensor)
    assert refusal(order_of(path), tmp_path)[0] == "adapter_inactive"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_none_are_refused(order_of, adapter_path, copy_of, tmp_path, value):
    path = copy_of(adapter_path)

    def spoil(name, tensor):
        tensor[0, 0] = value if "layers.1.mlp.up_proj.lora_A" in name else tensor[0, 0]
        return tensor

    rewrite(path, spoil)
    assert refusal(order_of(path), tmp_path)[0] == "not_finite"


def test_another_template_than_the_lineage_names_is_refused(order_of, adapter_path, tmp_path):
    order = order_of(adapter_path, template_sha256=hashlib.sha256(b"another").hexdigest())
    assert refusal(order, tmp_path)[0] == "template_changed"


def test_a_bad_row_is_named(order_of, adapter_path, files, tmp_path):
    files["holdout"].write_text('{"messages": []}\n')
    code, message = refusal(order_of(adapter_path), tmp_path)
    assert code == "malformed_rows"
    assert "holdout: line 1, messages" in message


def test_a_row_longer_than_the_context_is_named(order_of, adapter_path, files, tmp_path):
    files["safety"].write_text(json.dumps({"prompt": "How? " * 600}) + "\n")
    code, message = refusal(order_of(adapter_path), tmp_path)
    assert code == "too_long"
    assert message.startswith("0000001-")


class TestFullModels:
    @pytest.fixture
    def full_path(self, base_path, copy_of):
        path = copy_of(base_path)
        rewrite(path, lambda _name, tensor: tensor * 1.02, file="model.safetensors")
        return path

    def test_are_scored_after_their_base(self, order_of, full_path, adapter_path, tmp_path):
        parts = ["holdout", "benchmark:texts"]
        by_part, scores, _ = scored(order_of(full_path, kind="full", rank=0, parts=parts), tmp_path / "work")
        adapted, _, _ = scored(order_of(adapter_path, parts=parts), tmp_path / "work-2")
        assert scores.probe.num_tensors == 0
        assert len(by_part) == 4
        for name, side in by_part:
            assert (by_part[name, side].items == adapted[name, side].items) is (side is Side.BASE)

    def test_that_are_their_base_are_inactive(self, order_of, base_path, copy_of, tmp_path):
        order = order_of(copy_of(base_path), kind="full", rank=0)
        assert refusal(order, tmp_path)[0] == "adapter_inactive"

    def test_with_another_tokenizer_are_refused(self, order_of, full_path, tmp_path):
        (full_path / "tokenizer_config.json").write_text("{}")
        code, message = refusal(order_of(full_path, kind="full", rank=0), tmp_path)
        assert code == "malformed_model"
        assert "tokenizer_config.json" in message


def rewrite(path, change, file="adapter_model.safetensors"):
    from safetensors.torch import load_file, save_file

    tensors = {name: change(name, tensor).contiguous() for name, tensor in load_file(path / file).items()}
    save_file(tensors, path / file, metadata={"format": "pt"})
