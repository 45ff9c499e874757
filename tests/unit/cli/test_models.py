"""What is registered as a base model."""

from pathlib import Path

import pytest

from schemas.model import BaseModelRegistered
from schemas.specification import Method
from tests.builders import a_sha, capabilities
from tests.unit.cli.commandline import CommandLine

FACT = BaseModelRegistered(
    name="tiny",
    base_sha=a_sha("base"),
    manifest_sha256=a_sha("manifest"),
    source="directory",
    template_sha256=a_sha("template"),
    context_tokens=512,
    num_parameters=1,
)


@pytest.mark.parametrize("options", [(), ("--training-template", "auto")])
def test_answers_are_taken_from_the_models_own_template(
    retune: CommandLine, tmp_path: Path, options: tuple[str, ...]
) -> None:
    retune.follows(FACT)
    code, out, _ = retune.run("models", "register-base", "tiny", str(tmp_path), *options)
    assert code == 0
    assert out.startswith(f"tiny: 1 parameters, sha {FACT.base_sha}\n")
    assert "register it again" in out
    assert retune.commands[0].training_template is None


def test_a_training_template_is_sent_as_its_text(retune: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "marked.jinja"
    path.write_text("{% generation %}é{% endgeneration %}")
    retune.follows(FACT)
    code, _, _ = retune.run(
        "models", "register-base", "tiny", str(tmp_path), "--training-template", str(path)
    )
    assert code == 0
    assert retune.commands[0].training_template == path.read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "is not a file"), (b"\xff", "is not UTF-8"), (b"", "has 0 characters"), (b"x" * 200_001, "has 200001 characters")],
)  # fmt: skip
def test_what_is_no_template_is_wrong_usage(
    retune: CommandLine, tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "marked.jinja"
    if content is not None:
        path.write_bytes(content)
    code, _, err = retune.run(
        "models", "register-base", "tiny", str(tmp_path), "--training-template", str(path)
    )
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())
    assert retune.commands == []


@pytest.mark.parametrize(
    ("changes", "marks_answers", "origin"),
    [
        ({}, True, "; answers by its own marks"),
        ({}, False, "; answers derived from what it writes"),
        ({}, None, ""),
        (
            {"training_template_sha256": a_sha("marked")},
            False,
            f"; answers by the marks of the training template, sha {a_sha('marked')[:12]}",
        ),
    ],
)
def test_a_base_model_is_shown_with_who_says_what_its_answers_are(
    retune: CommandLine, changes: dict[str, str], marks_answers: bool | None, origin: str
) -> None:
    base = FACT.model_copy(update=changes | {"capabilities": capabilities(marks_answers=marks_answers)})
    detail = base.model_dump(mode="json", exclude={"name"})
    retune.answers["GET /models/tiny"] = {"id": "tiny", "retune": {"kind": "base", **detail}}
    _, out, _ = retune.run("models", "show", "tiny")
    [line] = [line for line in out.splitlines() if line.startswith("  template")]
    assert line == f"  template   its own, sha {a_sha('template')[:12]}{origin}"


def test_a_base_model_is_shown_with_what_each_method_needs_of_a_device(retune: CommandLine) -> None:
    gib = 2**30
    memory = {
        "sft": {"kept_bytes": 12 * gib, "recomputed_bytes": 8 * gib, "max_seq_length": 4096},
        "lora": {"kept_bytes": 3 * gib, "recomputed_bytes": gib, "max_seq_length": 4096},
    }
    detail = FACT.model_dump(mode="json", exclude={"name"})
    shown = {"kind": "base", **detail, "memory": memory}
    retune.answers["GET /models/tiny"] = {"id": "tiny", "retune": shown}
    _, out, _ = retune.run("models", "show", "tiny")
    end = "with activations computed again; windows of 4,096 tokens"
    assert [" ".join(line.split()) for line in out.splitlines()][-2:] == [
        f"memory lora: about 3.0 GiB of a GPU, 1.0 GiB {end}",
        f"sft: about 12.0 GiB of a GPU, 8.0 GiB {end}",
    ]


def test_a_base_model_is_shown_with_what_it_can_do(retune: CommandLine) -> None:
    gpt2_capabilities = capabilities(
        family="gpt2",
        refused_methods={Method.LORA: "vLLM serves GPT2LMHeadModel without adapters"},
        rows={"system": "", "one turn": "", "tools": "template.tools: it leaves the calls out"},
        cache_values_per_token=256,
        weights_dtype="F32",
    )
    base = FACT.model_copy(update={"capabilities": gpt2_capabilities})
    detail = base.model_dump(mode="json", exclude={"name"})
    retune.answers["GET /models/tiny"] = {"id": "tiny", "retune": {"kind": "base", **detail}}
    code, out, _ = retune.run("models", "show", "tiny")
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[4:] == [
        "family gpt2 (2 layers of 64, vocabulary 512; F32, sdpa attention)",
        "trained by cpt, dpo, sft",
        "not by lora: vLLM serves GPT2LMHeadModel without adapters",
        "lora 512 values for each unit of rank, on k_proj, q_proj",
        "rows prompt and completion, one turn, system",
        "not tools: template.tools: it leaves the calls out",
        "serving 512 bytes of cache a token in 16 bits",
    ]
    assert "template its own, sha" in lines[3]
