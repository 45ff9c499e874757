"""AsyncAPI 3 documents: one per service with what it sends and receives, and an index of all topics."""

from typing import Any

from schemas.base import Message
from schemas.envelope import CONTENT_TYPE, ce_type
from schemas.topics import LISTENS, READERS, SERVICES, TOPICS, Topic

VERSION = "1.0.0"
KAFKA_BINDING = "0.4.0"
MILLISECONDS_PER_DAY = 86_400_000

HEADERS = {
    "type": "object",
    "required": ["ce_id", "ce_specversion", "ce_type", "ce_source", "ce_time", "content-type"],
    "properties": {
        "ce_id": {"type": "string", "description": "with ce_source, unique: the key for deduplication"},
        "ce_specversion": {"const": "1.0"},
        "ce_type": {"type": "string", "pattern": r"^retune\.[A-Za-z]+\.v[0-9]+$"},
        "ce_source": {"type": "string", "format": "uri-reference"},
        "ce_time": {"type": "string", "format": "date-time"},
        "ce_subject": {"type": "string"},
        "ce_partitionkey": {"type": "string", "description": "equal to the record key"},
        "ce_sequence": {"type": "string", "description": "1, 2, 3 … per key; on *.events alone"},
        "ce_correlationid": {"type": "string"},
        "ce_causationid": {"type": "string"},
        "traceparent": {"type": "string"},
        "content-type": {"const": CONTENT_TYPE},
    },
}


def documents() -> dict[str, dict[str, Any]]:
    """Document by file name, without the ending."""
    found = {service: _service_document(service) for service in SERVICES if service not in READERS}
    return found | {"index": _document("retune", TOPICS, _operations((), TOPICS))}


def _service_document(service: str) -> dict[str, Any]:
    sends = tuple(topic for topic in TOPICS if service in topic.writers)
    receives = LISTENS[service]
    topics = tuple(topic for topic in TOPICS if topic in sends or topic in receives)
    return _document(service, topics, _operations(sends, receives))


def _document(title: str, topics: tuple[Topic, ...], operations: dict[str, Any]) -> dict[str, Any]:
    messages = {message.__name__: message for topic in topics for message in topic.messages}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": VERSION, "license": {"name": "Apache-2.0"}},
        "defaultContentType": CONTENT_TYPE,
        "channels": {topic.name: _channel(topic) for topic in topics},
        "operations": operations,
        "components": {
            "messages": {name: _message(messages[name]) for name in sorted(messages)},
            "messageTraits": {"cloudEvent": {"headers": HEADERS}},
        },
    }


def _channel(topic: Topic) -> dict[str, Any]:
    names = [message.__name__ for message in topic.messages]
    return {
        "address": topic.name,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
        "bindings": {
            "kafka": {
                "partitions": topic.partitions,
                "topicConfiguration": {
                    "cleanup.policy": ["delete"],
                    "retention.ms": topic.retention_days * MILLISECONDS_PER_DAY,
                },
                "bindingVersion": KAFKA_BINDING,
            }
        },
    }


def _message(message: type[Message]) -> dict[str, Any]:
    return {
        "name": ce_type(message),
        "summary": (message.__doc__ or "").strip().split("\n")[0],
        "traits": [{"$ref": "#/components/messageTraits/cloudEvent"}],
        "payload": {"$ref": f"../json/{message.type}.v{message.version}.json"},
        "bindings": {
            "kafka": {
                "key": {"type": "string", "description": message.keyed_by},
                "bindingVersion": KAFKA_BINDING,
            }
        },
    }


def _operations(sends: tuple[Topic, ...], receives: tuple[Topic, ...]) -> dict[str, Any]:
    pairs = [("send", topic) for topic in sends] + [("receive", topic) for topic in receives]
    return {
        f"{action}.{topic.name}": {"action": action, "channel": {"$ref": f"#/channels/{topic.name}"}}
        for action, topic in pairs
    }
