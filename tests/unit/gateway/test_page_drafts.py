"""A job as a form asks for it, and the same job as people type it elsewhere."""

import json
import subprocess
from typing import Any

import httpx
import openai
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from cli.commands import jobs as commands
from schemas.specification import JobSpec, Method, Tier
from services.gateway import decide
from services.gateway.decide import BaseModel, Inputs
from services.gateway.model import StoredFile, SubmittedSpec, SubmittedStage
from services.gateway.page import drafts, snippets
from services.gateway.requests import CreateJob
from shared.errors import Refused
from tests.builders import NOON, a_file_ref, a_sha, capabilities
from tests.unit.gateway.test_page_views import a_job
from tests.waiting import PATIENCE_SECONDS

HOSTILE = 'it\'s "$(touch x)" `y` \\ %s {{7*7}}\nnext'
FILES = ("file-a", "file-b", "file-c")
MINIMAL = {"model": "tiny", "training_file": "file-a", "method": "lora"}
RICH = MINIMAL | {
    "method": "dpo",
    "suffix": "-x.1",
    "validation_file": "file-b",
    "holdout_file": "file-c",
    "safety_mix": "file-c",
    "retune-safety_mix-share": "0.25",
    "retune-recipe-learning_rate": "2e-5",
    "retune-recipe-num_epochs": "2",
    "retune-recipe-weights": "adapter",
    "retune-recipe-lora-rank": "32",
    "retune-recipe-dpo-beta": "0.2",
    "retune-recipe-load_best_model_at_end": "true",
    "retune-policy-truncation": "true",
    "retune-resources-devices_per_node": "2",
    "retune-auto_deploy": "false",
    "retune-allow_ungated": "true",
    "retune-max_cost": "12.50",
    "retune-alerts-divergence": "pause",
    "retune-alerts-stall": "off",
    "retune-alerts-expected_cost": "10.00",
    "options": json.dumps(
        {
            "recipe": {"micro_batch_size": 1, "lora": {"target_modules": [HOSTILE]}},
            "later_stages": [{"training_file": "file-a", "recipe": {"method": "dpo", "weights": "adapter"}}],
        }
    ),
}
CASES = [MINIMAL, RICH]


def a_file(file_id: str) -> StoredFile:
    return StoredFile(
        file_id=file_id, tenant="acme", sha256=a_sha(file_id), size_bytes=1, filename="rows.jsonl", purpose="fine-tune",
        format=None, num_rows=None, created_at=NOON,
    )  # fmt: skip


def spec_of(body: CreateJob) -> JobSpec:
    """What the gateway would submit for it."""
    inputs = Inputs(BaseModel("tiny", a_sha("tiny")), {name: a_file(name) for name in FILES})
    ids = [f"ds-{each}" for each in range(1 + len(body.retune.later_stages))]
    command = decide.job_command(
        body, inputs, tenant="acme", tier=Tier.STANDARD, job_id="ftjob-1", dataset_ids=ids
    )
    return command.spec


def arguments_of(program: str, text: str) -> list[str]:
    """What a shell would call the program with."""
    script = f"{program}() {{ printf '%s\\0' \"$@\"; }}\n{text}"
    environment = {"RETUNE_BASE_URL": "http://gateway/v1", "RETUNE_API_KEY": "sk-retune-x"}
    answer = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, check=True, timeout=PATIENCE_SECONDS
    )
    return answer.stdout.decode().split("\0")[:-1]


class Caught(Exception):
    """Carries the body of a request that is not sent."""


def body_of_command(text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    class Api:
        def post(self, path: str, body: Any) -> None:
            raise Caught(path, body)

    monkeypatch.setattr(commands, "api", Api)
    program, *arguments = arguments_of("retune", text)
    assert program == "jobs"
    caught = CliRunner().invoke(commands.app, arguments).exception
    assert isinstance(caught, Caught), caught
    assert caught.args[0] == "/fine_tuning/jobs"
    return caught.args[1]


def body_of_curl(text: str) -> Any:
    arguments = arguments_of("curl", text)
    assert arguments[0] == "http://gateway/v1/fine_tuning/jobs"
    assert "Authorization: Bearer sk-retune-x" in arguments
    return json.loads(arguments[arguments.index("--data") + 1])


def body_of_python(text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    sent = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append((str(request.url), json.loads(request.content)))
        return httpx.Response(200, json={"id": "ftjob-1", "object": "fine_tuning.job"})

    client = httpx.Client(transport=httpx.MockTransport(answer))
    real = openai.OpenAI
    monkeypatch.setattr(openai, "OpenAI", lambda **options: real(**options, http_client=client))
    monkeypatch.setenv("RETUNE_BASE_URL", "http://gateway/v1")
    monkeypatch.setenv("RETUNE_API_KEY", "sk-retune-x")
    exec(compile(text, "snippet", "exec"), {})
    [(url, body)] = sent
    assert url == "http://gateway/v1/fine_tuning/jobs"
    return body


@pytest.mark.parametrize("values", CASES)
def test_what_is_copied_makes_the_same_job(values: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    request = drafts.request_of(values)
    expected, body = spec_of(request), drafts.as_asked(request)
    assert spec_of(CreateJob.model_validate(body)) == expected
    for copied in (
        body_of_command(snippets.as_command(body), monkeypatch),
        body_of_curl(snippets.as_curl(body)),
        body_of_python(snippets.as_python(body), monkeypatch),
    ):
        assert spec_of(CreateJob.model_validate(copied)) == expected


@pytest.mark.parametrize("values", CASES)
def test_a_form_filled_from_its_request_asks_for_the_same(values: dict[str, str]):
    request = drafts.request_of(values)
    again = drafts.request_of(drafts.values_of(drafts.as_asked(request)))
    assert spec_of(again) == spec_of(request)


def a_job_like(spec: JobSpec, **changes: Any) -> Any:
    own = spec.model_dump(mode="json", include={*SubmittedSpec.model_fields})
    return a_job(spec=own, **changes)


@pytest.mark.parametrize("values", CASES)
def test_a_form_filled_from_a_job_asks_for_the_same(values: dict[str, str]):
    request = drafts.request_of(values)
    spec = spec_of(request)
    stages = [
        SubmittedStage(**each.model_dump(include={"training_file", "validation_file"}), dataset_id="ds",
                       recipe=each.recipe.model_dump(mode="json"))
        for each in spec.by_stage
    ]  # fmt: skip
    policies = [request.retune.policy, *(each.policy for each in request.retune.later_stages)]
    job = a_job_like(spec, stages=stages if len(stages) > 1 else ())
    assert spec_of(drafts.request_of(drafts.values_of(drafts.like(job, policies)))) == spec


def test_a_form_filled_from_a_job_leaves_open_what_the_platform_chose():
    spec = spec_of(drafts.request_of(MINIMAL | {"method": "dpo", "retune-recipe-batch_size": "8"}))
    chosen = spec.recipe.model_dump(mode="json") | {"num_epochs": 3, "dpo": {"beta": 0.1}}
    reasons = {"num_epochs": "3: few rows", "dpo.beta": "0.1: of dpo"}
    job = a_job(
        spec={"base_model": "tiny", "training_file": a_file_ref().model_dump(), "recipe": chosen},
        recipe_reasons=reasons,
    )
    assert drafts.like(job, [None])["retune"] == {"recipe": {"method": "dpo", "batch_size": 8}}


def test_fields_that_the_method_does_not_have_are_left_out():
    request = drafts.request_of(MINIMAL | {"retune-recipe-dpo-beta": "0.2", "retune-recipe-weights": "full"})
    assert request.retune.recipe.dpo is None
    assert request.retune.recipe.weights == "auto"


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"retune-recipe-num_epochs": "many"}, "retune-recipe-num_epochs", "found 'many'"),
        ({"suffix": "a b"}, "suffix", "found 'a b'"),
        ({"retune-resources-nodes": "0"}, "retune-resources-nodes", "greater than or equal to 1"),
        ({"options": '{"recipe": {"x": 1}}'}, "options", "retune.recipe.x"),
        ({"options": '{"recipe": 3}'}, "options", "retune.recipe: found '3'"),
    ],
)
def test_an_error_is_at_the_field_that_it_is_about(changes: dict[str, str], field: str, words: str):
    with pytest.raises(ValidationError) as caught:
        drafts.request_of(MINIMAL | changes)
    [problem] = drafts.problems_of(caught.value)
    assert (problem.field, words in problem.message) == (field, True), problem


@pytest.mark.parametrize("text", ["[]", "{", "[" * 100_000, "3"])
def test_options_are_a_json_object(text: str):
    with pytest.raises(Refused) as caught:
        drafts.request_of(MINIMAL | {"options": text})
    assert drafts.problem_at(caught.value.param, caught.value.message).field == "options"


@pytest.mark.parametrize(
    ("param", "field"),
    [
        ("training_file", "training_file"),
        ("retune.recipe.method", "method"),
        ("retune.recipe.lora.rank", "retune-recipe-lora-rank"),
        ("retune.resources", "retune-resources-devices_per_node"),
        ("retune.gate.judge.url", "options"),
        ("open_jobs", ""),
        (None, ""),
    ],
)
def test_a_refusal_is_at_the_nearest_field(param: str | None, field: str):
    assert drafts.problem_at(param, "no").field == field


def test_methods_that_the_base_or_the_file_refuses_have_the_reason():
    base = capabilities(refused_methods={Method.LORA: "its layers take no adapter"}, converts_names=True)
    reasons = drafts.refused_methods(base, None)
    assert {method for method, why_not in reasons.items() if why_not} == {"lora", "qlora"}
    assert reasons[Method.LORA] == reasons[Method.QLORA] == "its layers take no adapter"
    chats = a_file("file-a").model_copy(update={"format": "chat"})
    refused = {method for method, why_not in drafts.refused_methods(None, chats).items() if why_not}
    assert refused == {"dpo", "cpt"}


def test_every_field_says_what_it_means():
    assert [each.name for each in drafts.SETTINGS if not each.help] == []


def test_a_share_of_a_safety_mix_without_its_file_is_a_problem_of_the_file() -> None:
    with pytest.raises(ValidationError) as caught:
        drafts.request_of(MINIMAL | {"retune-safety_mix-share": "0.5"})
    assert [problem.field for problem in drafts.problems_of(caught.value)] == ["safety_mix"]
