"""Which training template may stand for the one that a model is served with."""

import pytest

from shared.chat.probes import BadTemplate, require_same_text
from tests.tiny_model import CHAT_TEMPLATE
from tests.unit.shared.chat.tokenizers import template, with_template

UNMARKED = CHAT_TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def refused(released: str, training: str) -> str:
    with pytest.raises(BadTemplate) as caught:
        require_same_text(with_template(released), training)
    return str(caught.value)


@pytest.mark.parametrize("name", ["qwen2_5", "gemma", "llama3", "gptoss", "cohere2"])
def test_a_marked_twin_of_the_same_text_is_accepted(name: str) -> None:
    require_same_text(with_template(template(f"{name}.jinja")), template(f"{name}_training.jinja"))


def test_another_text_is_refused_with_its_place() -> None:
    assert refused(template("qwen3.jinja"), template("qwen3_training.jinja")) == (
        "several turns: the training template writes '<think>\\n\\n</think>\\n\\nBlue.' at character 64, "
        "expected 'Blue.<|im_end|>\\n<|im_sta' as the model's own"
    )


@pytest.mark.parametrize("name", ["deepseek_r1_distill", "glm4moe", "qwen3_5_think"])
def test_a_twin_that_shows_what_the_model_never_sees_is_refused(name: str) -> None:
    assert "the training template writes" in refused(
        template(f"{name}.jinja"), template(f"{name}_training.jinja")
    )


def test_a_template_without_marks_marks_nothing() -> None:
    assert "no {% generation %} block" in refused(CHAT_TEMPLATE, UNMARKED)
