"""Write the generated files, or with --check say which are out of date."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from schemas.base import Message
from schemas.envelope import Envelope, to_headers
from schemas.generate.asyncapi import documents
from schemas.generate.avro import record
from schemas.generate.breaking import breaking_changes
from schemas.generate.sample import NOON, sample_of
from schemas.topics import TOPICS

ROOT = Path(__file__).parents[1]
SAMPLE_ENVELOPE = Envelope(
    id="3f2504e04f8941d39a0c0305e82c3301",
    type="",
    version=1,
    source="/retune/sample",
    time=NOON,
    key="",
    sequence=1,
    correlation_id="c0ffee00000000000000000000000001",
    causation_id="c0ffee00000000000000000000000002",
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)


def all_messages() -> list[type[Message]]:
    messages = {message.type: message for topic in TOPICS for message in topic.messages}
    return [messages[name] for name in sorted(messages)]


def generated() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield every generated file with its content. Samples are made once and then kept."""
    for message in all_messages():
        name = f"{message.type}.v{message.version}"
        yield ROOT / "json" / f"{name}.json", json_schema(message)
        yield ROOT / "avro" / f"{name}.avsc", record(message)
        sample = ROOT / "samples" / f"{name}.json"
        if not sample.exists():
            yield sample, sample_document(message)
    for name, document in documents().items():
        yield ROOT / "asyncapi" / f"{name}.json", document


def json_schema(message: type[Message]) -> dict[str, Any]:
    return message.model_json_schema(mode="serialization")


def sample_document(message: type[Message]) -> dict[str, Any]:
    sample = sample_of(message)
    envelope = replace(SAMPLE_ENVELOPE, type=message.type, version=message.version, key=sample.key)
    headers = {name: value.decode() for name, value in to_headers(envelope)}
    return {"key": sample.key, "headers": headers, "value": sample.model_dump(mode="json")}


def main(arguments: list[str]) -> int:
    is_check = "--check" in arguments
    files = [(path, _text(content), content) for path, content in generated()]
    stale = [(path, text, new) for path, text, new in files if not path.exists() or path.read_text() != text]
    broken = [line for path, _, new in stale for line in _breaks(path, new)]
    for line in broken:
        print(f"breaking without a new version: {line}", file=sys.stderr)  # noqa: T201
    if broken:
        return 1
    for path, text, _ in stale:
        print(f"{'out of date' if is_check else 'written'}: {path.relative_to(ROOT)}")  # noqa: T201
        if not is_check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return 1 if is_check and stale else 0


def _breaks(path: Path, new: dict[str, Any]) -> list[str]:
    if path.parent.name != "json" or not path.exists():
        return []
    return [f"{path.stem}: {line}" for line in breaking_changes(json.loads(path.read_text()), new)]


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
