"""Write schemas/handled.py from the handlers of the services, or with --check say that it is out of date."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from fastapi import FastAPI

from deploy.placeholders import placeholder_settings
from schemas.topics import OF_EVERY_TENANT, READERS, SERVICES, TENANT_COMMAND_TYPES, TOPICS
from shared.service import Service

PATH = Path(__file__).parents[1] / "schemas/handled.py"
HEAD = '"""What each service handles, by topic. Written by `make schemas` from the handlers: changes are lost."""\n'

Handled = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Types of messages by service and topic."""


def built(service: str) -> Service:
    """Return the service as it is wired, without anything behind it."""
    settings = importlib.import_module(f"services.{service}.settings").Settings
    app = importlib.import_module(f"services.{service}.app").build(placeholder_settings(settings))
    wired = app.state.service if isinstance(app, FastAPI) else app
    assert isinstance(wired, Service)
    return wired


def handled() -> Handled:
    """Return what each service has handlers for, in the order of the contract."""
    return {service: _in_order(built(service).handled()) for service in SERVICES if service not in READERS}


def _in_order(types: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    carried = {topic.name: topic.messages for topic in TOPICS} | {OF_EVERY_TENANT: TENANT_COMMAND_TYPES}
    return {
        topic: tuple(message.type for message in messages if message.type in types[topic])
        for topic, messages in carried.items()
        if topic in types
    }


def text_of(handled: Handled) -> str:
    return "\n".join([HEAD, "HANDLED: dict[str, dict[str, tuple[str, ...]]] = {", *_lines(handled), "}", ""])


def _lines(handled: Handled) -> Iterator[str]:
    for service, topics in handled.items():
        yield f'    "{service}": {{'
        for topic, types in topics.items():
            if len(types) == 1:
                yield f'        "{topic}": ("{types[0]}",),'
            else:
                yield f'        "{topic}": ('
                yield from (f'            "{each}",' for each in types)
                yield "        ),"
        yield "    },"


def main(arguments: list[str]) -> int:
    is_check = "--check" in arguments
    text = text_of(handled())
    if PATH.read_text() == text:
        return 0
    print(f"{'out of date' if is_check else 'written'}: schemas/handled.py")
    if not is_check:
        PATH.write_text(text)
    return int(is_check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
