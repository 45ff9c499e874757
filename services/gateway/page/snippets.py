"""A request as people type it: for the command line, for curl and in Python. Pure."""

import json
import pprint
import shlex
from collections.abc import Mapping

from pydantic import JsonValue

from services.gateway.model import JsonObject

OWN_OPTIONS = {"validation_file": "--validation-file", "suffix": "--suffix"}
"""Options of `retune jobs submit` beside its file, model and `--options`."""


def as_command(body: JsonObject) -> str:
    """Return a call of `retune jobs submit`."""
    words = ["retune jobs submit", shlex.quote(str(body["training_file"]))]
    words.append(f"--model {shlex.quote(str(body['model']))}")
    words += [
        f"{option} {shlex.quote(str(body[name]))}" for name, option in OWN_OPTIONS.items() if name in body
    ]
    retune = dict(_object(body.get("retune")))
    if holdout := retune.pop("holdout_file", None):
        words.append(f"--holdout {shlex.quote(str(holdout))}")
    mix = dict(_object(retune.pop("safety_mix", None)))
    if file := mix.pop("file", None):
        words.append(f"--safety-mix {shlex.quote(str(file))}")
    if mix:
        retune["safety_mix"] = mix
    if max_cost := retune.pop("max_cost", None):
        words.append(f"--max-cost {shlex.quote(str(max_cost))}")
    if retune.pop("allow_ungated", False):
        words.append("--allow-ungated")
    if retune:
        words.append(f"--options {shlex.quote(_dumped(retune))}")
    return " \\\n  ".join(words)


def as_sweep_command(text: str) -> str:
    """Return lines for a shell that write the sweep's file and begin it."""
    end = "END"
    while end in text:
        end += "_"
    return f"cat > sweep.toml <<'{end}'\n{text.rstrip()}\n{end}\nretune sweeps create sweep.toml"


def as_curl(body: JsonObject, path: str = "fine_tuning/jobs") -> str:
    """Return a call of curl, with the address and the key of the environment."""
    return (
        f'curl "$RETUNE_BASE_URL/{path}" \\\n'
        '  -H "Authorization: Bearer $RETUNE_API_KEY" \\\n'
        "  -H 'Content-Type: application/json' \\\n"
        f"  --data {shlex.quote(_dumped(body))}"
    )


def as_python(body: JsonObject) -> str:
    """Return a program with OpenAI's client."""
    arguments = [f"    {name}={_literal(value)},\n" for name, value in body.items() if name != "retune"]
    if "retune" in body:
        arguments.append(f"    extra_body={_literal({'retune': body['retune']})},\n")
    return (
        "from os import environ\n\nfrom openai import OpenAI\n\n"
        'client = OpenAI(base_url=environ["RETUNE_BASE_URL"], api_key=environ["RETUNE_API_KEY"])\n'
        f"job = client.fine_tuning.jobs.create(\n{''.join(arguments)})\n"
        "print(job.id)\n"
    )


def _literal(value: JsonValue) -> str:
    return pprint.pformat(value, indent=1, width=90, sort_dicts=False).replace("\n", "\n        ")


def _dumped(value: JsonObject) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False)


def _object(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, dict) else {}
