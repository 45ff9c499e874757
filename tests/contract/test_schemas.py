"""The contract is frozen: what is generated is what is committed, and what was ever published still parses."""

import copy
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from schemas.generate.__main__ import ROOT, all_messages, generated, json_schema
from schemas.generate.breaking import breaking_changes
from schemas.topics import (
    LISTENS,
    READERS,
    SERVICES,
    TENANT_COMMAND_TYPES,
    TENANT_FACT_TYPES,
    TOPICS,
    refusals_of,
    topic_of,
)
from schemas.upcasters import UPCASTS, upcast, upcasts
from shared.messaging.delivery import Delivery, read
from shared.record import Record

Schema = dict[str, Any]
SAMPLES = sorted((ROOT / "samples").glob("*.json"))


def topic_with(message_type: str) -> str:
    return next(topic.name for topic in TOPICS for message in topic.messages if message.type == message_type)


def record_of(sample: Path, **changed: object) -> Record:
    document = json.loads(sample.read_text())
    headers = [(name, value.encode()) for name, value in document["headers"].items()]
    topic = topic_with(sample.name.split(".")[0])
    value = json.dumps(document["value"] | changed).encode()
    return Record(topic, 0, 0, document["key"].encode(), tuple(headers), value)


def test_generated_files_are_the_committed_ones():
    for path, content in generated():
        assert path.exists(), f"{path.name} is missing: run `make schemas`"
        assert json.loads(path.read_text()) == content, f"{path.name} is out of date: run `make schemas`"


def test_every_type_has_a_sample():
    assert {f"{message.type}.v{message.version}" for message in all_messages()} <= {p.stem for p in SAMPLES}


def test_every_sample_ever_published_still_parses():
    """With fields of newer writers too, which readers ignore."""
    for sample in SAMPLES:
        for added in ({}, {"field_of_the_future": 1}):
            delivery = read(record_of(sample, **added))
            assert isinstance(delivery, Delivery), f"{sample.name} and {added}: {delivery}"
            assert delivery.message.type == sample.name.split(".")[0]


def test_avro_accepts_each_schema_and_round_trips_its_sample():
    for message in all_messages():
        name = f"{message.type}.v{message.version}"
        schema = fastavro.parse_schema(json.loads((ROOT / "avro" / f"{name}.avsc").read_text()))
        value = json.loads((ROOT / "samples" / f"{name}.json").read_text())["value"]
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, schema, value, strict_allow_default=True)
        buffer.seek(0)
        read_back = message.model_validate(fastavro.schemaless_reader(buffer, schema, None))
        assert read_back == message.model_validate(value), name


class TestBreakingChanges:
    OLD = json_schema(next(message for message in all_messages() if message.type == "CheckpointWritten"))

    def test_a_new_optional_field_is_none(self):
        new = copy.deepcopy(self.OLD)
        new["properties"]["note"] = {"type": "string", "default": ""}
        assert breaking_changes(self.OLD, new) == []

    def test_a_removed_field_is_one(self):
        new = copy.deepcopy(self.OLD)
        del new["properties"]["kind"]
        assert breaking_changes(self.OLD, new) == ["payload.kind: removed"]

    def test_a_changed_type_deep_inside_is_one(self):
        new = copy.deepcopy(self.OLD)
        new["$defs"]["BundleRef"]["properties"]["step"]["type"] = "string"
        assert breaking_changes(self.OLD, new) == ["payload.bundle.step: was integer, is string"]

    def test_a_value_that_is_no_longer_allowed_is_one(self):
        new = copy.deepcopy(self.OLD)
        new["$defs"]["BundleKind"]["enum"].remove("final")
        assert breaking_changes(self.OLD, new) == ["payload.kind: no longer allows 'final'"]

    def test_a_new_required_field_is_one(self):
        new = copy.deepcopy(self.OLD)
        new["properties"]["region"] = {"type": "string"}
        new["required"].append("region")
        assert breaking_changes(self.OLD, new) == ["payload.region: is required now"]


class TestUpcasting:
    """The worked example: version 1 of a message counted megabytes, version 2 bytes, version 3 names the unit."""

    @pytest.fixture(autouse=True)
    def example(self, monkeypatch):
        monkeypatch.setattr("schemas.upcasters.UPCASTS", {})

    def test_old_payloads_pass_every_step(self):
        import schemas.upcasters as module

        @upcasts("ModelMeasured", since=1)
        def in_bytes(payload: dict) -> dict:
            return {"size": payload["size_mb"] * 1_048_576}

        @upcasts("ModelMeasured", since=2)
        def with_unit(payload: dict) -> dict:
            return {"size_bytes": payload["size"]}

        assert upcast("ModelMeasured", 1, {"size_mb": 2}, to=3) == {"size_bytes": 2_097_152}
        assert upcast("ModelMeasured", 3, {"size_bytes": 5}, to=3) == {"size_bytes": 5}
        assert len(module.UPCASTS) == 2

    def test_a_missing_step_is_an_error(self):
        with pytest.raises(KeyError):
            upcast("ModelMeasured", 1, {}, to=2)

    def test_two_steps_from_one_version_are_refused(self):
        upcasts("ModelMeasured", since=1)(dict)
        with pytest.raises(ValueError, match="two upcasters of ModelMeasured"):
            upcasts("ModelMeasured", since=1)(dict)


def undescribed(schema: Schema) -> Iterator[str]:
    """Fields without a text, at any depth; that of their type counts."""
    types = schema.get("$defs", {})

    def is_described(field: Schema) -> bool:
        if "description" in field or "const" in field:
            return True
        if "$ref" in field:
            return "description" in types[field["$ref"].rsplit("/", 1)[1]]
        branches = [each for each in field.get("anyOf", field.get("oneOf", [])) if each.get("type") != "null"]
        parts = branches or [field[name] for name in ("items",) if name in field]
        return bool(parts) and all(map(is_described, parts))

    for name, each in (("payload", schema), *types.items()):
        yield from (
            f"{name}.{field}" for field, its in each.get("properties", {}).items() if not is_described(its)
        )


def test_every_message_and_every_field_says_what_it_is():
    silent = [message.type for message in all_messages() if not (message.__doc__ or "").strip()]
    fields = [f"{each.type}: {field}" for each in all_messages() for field in undescribed(json_schema(each))]
    assert silent + fields == []


def test_a_field_without_a_text_is_seen():
    field = {"type": "string"}
    schema = {
        "properties": {"a": field, "b": {"$ref": "#/$defs/B"}, "c": {"anyOf": [field, {"type": "null"}]}},
        "$defs": {"B": {"properties": {"d": field, "e": field | {"description": "of e"}}}},
    }
    assert list(undescribed(schema)) == ["payload.a", "payload.b", "payload.c", "B.d"]


class TestAsyncApi:
    TENANT = json.loads((ROOT / "asyncapi" / "tenant.json").read_text())

    def test_a_tenants_document_has_both_its_doors(self):
        addresses = {channel["address"]: channel for channel in self.TENANT["channels"].values()}
        assert set(addresses) == {"tenant.{tenant}.commands", "tenant.{tenant}.events"}
        assert all("tenant" in channel["parameters"] for channel in addresses.values())
        sent = addresses["tenant.{tenant}.commands"]["messages"]
        assert set(sent) == {command.__name__ for command in TENANT_COMMAND_TYPES}
        heard = addresses["tenant.{tenant}.events"]["messages"]
        assert set(heard) == {fact.__name__ for fact in TENANT_FACT_TYPES}

    @pytest.mark.parametrize("path", sorted((ROOT / "asyncapi").glob("*.json")), ids=lambda path: path.stem)
    def test_every_document_says_where_and_how_to_log_in_and_all_it_refers_to_exists(self, path: Path):
        document = json.loads(path.read_text())
        (server,) = document["servers"].values()
        assert server["protocol"] == "kafka"
        for reference in references(document):
            where, _, pointer = reference.partition("#")
            node = json.loads((path.parent / where).read_text()) if where else document
            for part in filter(None, pointer.split("/")):
                node = node[part]


def references(document: object) -> Iterator[str]:
    if isinstance(document, dict):
        yield from (value for name, value in document.items() if name == "$ref")
        for each in document.values():
            yield from references(each)
    elif isinstance(document, list):
        for each in document:
            yield from references(each)


def test_every_old_version_has_its_upcaster():
    for message in all_messages():
        for version in range(1, message.version):
            assert (message.type, version) in UPCASTS


class TestTopics:
    def test_every_listener_is_a_service(self):
        assert set(LISTENS) == set(SERVICES)

    def test_every_service_has_one_place_for_its_refusals(self):
        refusing = set(SERVICES) - set(READERS)
        assert {service: refusals_of(service).is_commands for service in refusing} == dict.fromkeys(
            refusing, False
        )

    def test_a_reader_listens_to_nothing_and_writes_nothing(self):
        assert {service for service in SERVICES if not LISTENS[service]} == set(READERS)
        assert not {writer for topic in TOPICS for writer in topic.writers} & set(READERS)

    def test_a_message_leaves_a_service_by_one_topic(self):
        for topic in TOPICS:
            for writer in topic.writers:
                for message in topic.messages:
                    if message.type != "CommandRefused":
                        assert topic_of(message, writer=writer) == topic
