"""Models of several kinds score what questions share as they score each ending alone, or share nothing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from services.evaluator.scoring.likelihood import MIN_PREFIX_TOKENS, Question, likelihoods
from services.evaluator.scoring.scorer import Scorer
from services.evaluator.scoring.sharing import tokens_that_share
from tests.tiny_model import save_tokenizer

VOCABULARY, CONTEXT = 300, 256
SHORT, WIDE = 48, 100
"""Windows: one that the questions below exceed, one that they do not."""
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA_LIKE = {**SIZES, "intermediate_size": 64, "num_key_value_heads": 1, "max_position_embeddings": CONTEXT}
KINDS: Mapping[str, tuple[str, dict[str, Any], int]] = {
    # The type of the configuration, its values, and how long a question may be that shares.
    "llama": ("llama", LLAMA_LIKE, CONTEXT),
    "gpt2": ("gpt2", {**SIZES, "n_positions": CONTEXT}, CONTEXT),
    "gpt_neox": ("gpt_neox", {**SIZES, "intermediate_size": 64, "max_position_embeddings": CONTEXT}, CONTEXT),
    # Takes no `position_ids`: it has positions from a mask of two dimensions.
    "bloom": ("bloom", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 2}, 0),
    "mistral, short window": ("mistral", {**LLAMA_LIKE, "head_dim": 16, "sliding_window": SHORT}, 0),
    "mistral, wide window": ("mistral", {**LLAMA_LIKE, "head_dim": 16, "sliding_window": WIDE}, WIDE),
    # Layers with a window and layers without one.
    "gemma3, short window": ("gemma3_text", {**LLAMA_LIKE, "head_dim": 16, "sliding_window": SHORT}, 0),
    "gemma3, wide window": ("gemma3_text", {**LLAMA_LIKE, "head_dim": 16, "sliding_window": WIDE}, WIDE),
}


def tokens(count: int, start: int = 7) -> list[int]:
    return [(start + 31 * n * n) % (VOCABULARY - 10) + 3 for n in range(count)]


BEGINNING = tokens(MIN_PREFIX_TOKENS + 9)
QUESTIONS = [
    Question(BEGINNING + tokens(n, n), (tokens(1, n), tokens(4, n), tokens(7, 2 * n))) for n in range(1, 9)
] + [Question(tokens(n, 99), (tokens(3), tokens(2, 5))) for n in (1, 2, 70)]


class Counting(torch.nn.Module):
    """Counts the tokens that go through a model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config, self.tokens = model, model.config, 0

    def get_output_embeddings(self) -> Any:
        return self.model.get_output_embeddings()

    def forward(self, input_ids: Any, **inputs: Any) -> Any:
        self.tokens += input_ids.numel()
        return self.model(input_ids=input_ids, **inputs)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def scorer(kind, tmp_path):
    return a_scorer(kind, tmp_path)


def a_scorer(kind, directory):
    import inspect

    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    save_tokenizer(directory, text="the quick brown fox\n", vocab_size=VOCABULARY, context_tokens=CONTEXT)
    torch.manual_seed(3)
    model_type, values, _ = KINDS[kind]
    config = AutoConfig.for_model(model_type, **values, initializer_range=0.3, pad_token_id=0)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    return Scorer(
        model=model,
        tokenizer=AutoTokenizer.from_pretrained(directory),
        device=torch.device("cpu"),
        dtype=torch.float32,
        max_tokens=CONTEXT,
        max_new_tokens=1,
        max_answer_tokens=1,
        batch_tokens=1_024,
        forward_tokens=512,
        inputs=frozenset(inspect.signature(model.forward).parameters),
    )


def ignore(_done, _total):
    pass


def flat(scored):
    return [ending.nats for endings in scored for ending in endings]


@torch.inference_mode()
def alone(scorer):
    """Each ending behind its context in a batch of one, without cache, mask or positions of ours."""
    for question in QUESTIONS:
        for ending in question.endings:
            ids = torch.tensor([[*question.context, *ending]])
            logits = scorer.model(input_ids=ids[:, :-1], use_cache=False).logits[0, -len(ending) :].float()
            labels = torch.tensor(ending)[:, None]
            yield -float(logits.log_softmax(dim=-1).gather(1, labels).double().sum())


def test_a_kind_of_model_shares_what_it_allows(scorer, kind):
    assert tokens_that_share(scorer, tokens(20)) == KINDS[kind][2]


def test_every_kind_scores_as_each_ending_alone(scorer):
    shared = replace(scorer, shared_tokens=tokens_that_share(scorer, tokens(20)))
    assert flat(likelihoods(shared, QUESTIONS, ignore)) == pytest.approx(list(alone(scorer)), rel=2e-5)


def test_the_same_prefix_is_there_for_every_batch(tmp_path):
    """A batch must not leave its own keys in the prefix that the next one starts from."""
    scorer = replace(a_scorer("llama", tmp_path), shared_tokens=CONTEXT)
    one_row = likelihoods(replace(scorer, forward_tokens=1), QUESTIONS, ignore)
    assert flat(one_row) == pytest.approx(list(alone(scorer)), rel=2e-5)


def test_each_subject_has_its_own_beginning_behind_a_sentence_that_all_have(tmp_path):
    """Three subjects, each with examples of its own behind an equal sentence of over 32 tokens."""
    scorer = replace(a_scorer("llama", tmp_path), shared_tokens=CONTEXT)
    subjects = [[*BEGINNING, *tokens(100, 11 * n + 1)] for n in range(3)]
    questions = [
        Question([*subject, *tokens(6, n)], (tokens(2, n),)) for subject in subjects for n in range(5)
    ]
    counting = Counting(scorer.model)
    scored = likelihoods(replace(scorer, model=counting), questions, ignore)
    assert counting.tokens == sum(map(len, subjects)) + len(questions) * (6 + 1)
    apart = likelihoods(replace(scorer, shared_tokens=0), questions, ignore)
    assert flat(scored) == pytest.approx(flat(apart), rel=2e-5)


class Headless(Counting):
    """As a model whose logits come from no layer that it names."""

    def get_output_embeddings(self) -> None:
        return None


def test_the_head_computes_what_is_asked_alone(tmp_path):
    """Three choices of 1, 1 and 3 tokens begin at the same position."""
    scorer = a_scorer("llama", tmp_path)
    scorer = replace(scorer, shared_tokens=CONTEXT)
    questions = [Question(tokens(20 + n, n), (tokens(1, n), tokens(1, 9), tokens(3, n))) for n in range(5)]
    positions = []
    head = scorer.model.get_output_embeddings()
    head.register_forward_hook(lambda _head, _given, logits: positions.append(logits[..., 0].numel()))
    likelihoods(scorer, questions, ignore)
    assert sum(positions) == 3 * len(questions)


def test_a_model_that_names_no_head_scores_alike(tmp_path):
    scorer = replace(a_scorer("llama", tmp_path), shared_tokens=CONTEXT)
    headless = replace(scorer, model=Headless(scorer.model))
    assert flat(likelihoods(headless, QUESTIONS, ignore)) == pytest.approx(list(alone(scorer)), rel=2e-5)


def test_short_rows_are_not_padded_to_long_ones(tmp_path):
    """Of 16 rows of 100 tokens five fit a pass; the last one goes alone, without shorter rows behind it."""
    scorer = replace(a_scorer("llama", tmp_path), shared_tokens=CONTEXT)
    counting = Counting(scorer.model)
    widths = [100] * 16 + [20] * 16
    questions = [Question(tokens(width, n), (tokens(1),)) for n, width in enumerate(widths)]
    likelihoods(replace(scorer, model=counting), questions, ignore)
    assert counting.tokens == sum(widths)
