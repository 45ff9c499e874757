"""Blocks of code in documents: a test runs each, and what no test runs is read by the program that it is for."""

import ast
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Iterator

import pytest
from typer.core import TyperGroup
from typer.exceptions import TyperException

from deploy.images.passwords import complete
from deploy.local import environment
from deploy.local.stack import Stack
from schemas.elastic import sizes_of
from schemas.specification import DatasetFormat
from services.gateway.requests import CreateJob, CreateSweep, Extensions
from services.ingest.pipeline.formats import parse_example
from tests.architecture.containers import compose
from tests.architecture.test_documents import CODE_SPAN, PRESENT, PROGRAM, RETUNE, fenced, name_of
from tests.documents import FENCE, ROOT, blocks

OWN = "tests/architecture/test_snippets.py"
HOLDERS = {
    ("deploy/local/README.md", "python"): OWN,
    ("docs/guides/consumer.md", "python"): "tests/integration/clients/test_clients.py",
    ("docs/guides/first-job.md", "json"): OWN,
    ("docs/guides/elastic.md", "json"): OWN,
    ("docs/guides/from-openai.md", "python"): "tests/integration/gateway/test_guides.py",
    ("docs/guides/service.md", "markdown"): "tests/integration/test_add_a_service.py",
    ("docs/guides/service.md", "python"): "tests/integration/test_add_a_service.py",
    ("docs/guides/service.md", "sql"): "tests/integration/test_add_a_service.py",
    ("docs/guides/sweeps.md", "toml"): OWN,
    ("docs/guides/webhooks.md", "python"): "tests/integration/gateway/test_webhooks.py",
}
"""The test of the blocks of a page in a language. Commands and outputs have no language; the tests below read them."""
OPTIONS = re.compile(r"--options '([^']+)'")
COMPOSED = re.compile(r"docker compose run --rm ([a-z_-]+)")
REPLACED = re.compile(r"^sed -i '?s/([^/]+)/[^/]+/'? (\S+)$", re.MULTILINE)


def commands() -> Iterator[tuple[str, str]]:
    """Every block without a language, with its page's name."""
    return ((name_of(page), text) for page in PRESENT for text in fenced(page, "", "sh", "bash", "console"))


def parse(words: list[str]) -> None:
    """As `retune` itself would; raises TyperException and runs nothing."""
    command, name = PROGRAM, "retune"
    context = command.make_context(name, list(words))
    while isinstance(command, TyperGroup):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)


def test_every_block_with_a_language_is_held_by_a_test_that_names_its_page():
    printed = {
        (name_of(page), language)
        for page in PRESENT
        for language, _ in FENCE.findall(page.read_text())
        if language
    }
    assert printed == HOLDERS.keys()
    assert [page for (page, _), test in HOLDERS.items() if page not in (ROOT / test).read_text()] == []


def test_lines_of_retune_are_whole():
    """With every argument that the command needs, and values of the right type."""
    lines = [(page, line) for page, text in commands() for line in RETUNE.findall(text.replace("\\\n", " "))]
    assert len(lines) > 20
    for page, line in lines:
        try:
            parse(shlex.split(line))
        except TyperException as error:
            pytest.fail(f"{page}: retune {line}: {error}")


def test_a_line_that_lacks_an_argument_is_found():
    with pytest.raises(TyperException, match="Missing parameter: model"):
        parse(["jobs", "submit", "train.jsonl"])
    with pytest.raises(TyperException, match="valid number"):
        parse(["nodes", "drain", "n-1", "--grace", "soon"])


def test_options_of_a_job_are_those_of_its_specification():
    texts = [text for page in PRESENT for text in (*fenced(page, ""), *CODE_SPAN.findall(page.read_text()))]
    printed = [options for text in texts for options in OPTIONS.findall(text) if "…" not in options]
    assert printed
    for options in map(json.loads, printed):
        if "safety_mix" in options:
            options["safety_mix"]["file"] = "of --safety-mix"
        Extensions.model_validate(options)


def test_the_row_of_the_first_job_is_one_of_a_chat():
    for text in blocks("docs/guides/first-job.md", "json"):
        for number, line in enumerate(text.splitlines(), start=1):
            assert parse_example(json.loads(line), expected=DatasetFormat.CHAT, line=number)


def test_the_elastic_job_of_the_guide_is_one():
    (text,) = blocks("docs/guides/elastic.md", "json")
    request = CreateJob.model_validate_json(text)
    sizes = sizes_of(request.retune.resources)
    assert [asked.nodes for asked in sizes] == [1, 2, 3, 4]


def test_the_sweep_of_the_guide_is_one():
    (text,) = blocks("docs/guides/sweeps.md", "toml")
    CreateSweep.model_validate(tomllib.loads(text))


def test_variables_that_are_exported_are_settings():
    settings = (ROOT / "docs/reference/settings.md").read_text()
    exported = [
        (page, word.partition("=")[0])
        for page, text in commands()
        for line in text.splitlines()
        if line.startswith("export ")
        for word in shlex.split(line, comments=True)[1:]
    ]
    assert exported
    assert [(page, name) for page, name in exported if f"`{name}`" not in settings] == []


def test_what_is_run_by_docker_compose_is_a_container():
    named = [(page, name) for page, text in commands() for name in COMPOSED.findall(text)]
    assert named
    assert [(page, name) for page, name in named if name not in compose()["services"]] == []


def test_what_is_replaced_in_a_file_is_there():
    files = {".env": complete("", ""), ".retune/pools.toml": environment.POOLS.read_text()}
    replaced = [(page, old, file) for page, text in commands() for old, file in REPLACED.findall(text)]
    assert replaced
    assert [(page, old, file) for page, old, file in replaced if old not in files[file]] == []


def test_calls_of_the_stack_have_its_arguments():
    """Not run: each would start another Kafka; the integration tests call the same."""
    (text,) = blocks("deploy/local/README.md", "python")
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    assert len(calls) > 5
    for call in calls:
        function = Stack if isinstance(call.func, ast.Name) else getattr(Stack, call.func.attr)
        bound = [] if function is Stack else [None]
        inspect.signature(function).bind(
            *bound, *call.args, **{each.arg: each.value for each in call.keywords}
        )


def test_what_the_readme_shows_of_the_demo_is_of_its_output():
    shown = [text for text in blocks("README.md", "") if text.startswith("== ")]
    output = (ROOT / "docs/demo.md").read_text().splitlines()
    assert len(shown) == 1
    assert [line for line in shown[0].splitlines() if line not in output] == []
