"""AsyncAPI 3 documents: one per service with what it sends and receives, and an index of all topics."""

from typing import Any

from schemas import access
from schemas.base import Message
from schemas.envelope import CONTENT_TYPE, SIGNATURE, ce_type
from schemas.handled import HANDLED
from schemas.rights import group_prefix
from schemas.topics import LISTENS, READERS, SERVICES, TOPICS, Topic, listens_to_tenants, tenant_topics

VERSION = "1.0.0"
KAFKA_BINDING = "0.4.0"
MILLISECONDS_PER_DAY = 86_400_000

SERVERS = {
    "kafka": {
        "host": "{bootstrap}",
        "protocol": "kafka",
        "description": "The brokers of an installation; the local stack writes the address to `.retune/env`.",
        "variables": {
            "bootstrap": {"description": "host:port of the first brokers", "default": "127.0.0.1:9094"}
        },
        "security": [{"$ref": "#/components/securitySchemes/scram"}],
        "bindings": {"kafka": {"bindingVersion": KAFKA_BINDING}},
    }
}
SECURITY_SCHEMES = {
    "scram": {
        "type": "scramSha512",
        "description": "SASL without TLS. Each program has a user with rights of its own; nothing else is allowed.",
    }
}
TENANT_PARAMETER = {
    "description": "Name of the tenant; a program reads and writes its own tenant's topics alone."
}

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
        SIGNATURE: {
            "type": "string",
            "contentEncoding": "base64",
            "description": "of what a node writes: its Ed25519 signature of topic, key, headers and value",
        },
    },
}


def documents() -> dict[str, dict[str, Any]]:
    """Return each document by its file name, without the ending."""
    documents = {service: _service_document(service) for service in SERVICES if service not in READERS}
    index = _document("retune", (*TOPICS, *tenant_topics("{tenant}")), _operations((), TOPICS))
    return documents | {"index": index, "tenant": _tenant_document()}


def _tenant_document() -> dict[str, Any]:
    """Return the document with what a program of a tenant sends and receives."""
    commands, events = tenant_topics("{tenant}")
    document = _document("tenant", (commands, events), _operations((commands,), (events,)))
    prefix = group_prefix(access.tenant_user("{tenant}"))
    group = {"type": "string", "description": f"begins with `{prefix}`"}
    binding = {"kafka": {"groupId": group, "bindingVersion": KAFKA_BINDING}}
    document["operations"][f"receive.{_channel_id(events)}"]["bindings"] = binding
    return document


def _service_document(service: str) -> dict[str, Any]:
    of_tenants = tenant_topics("{tenant}") if listens_to_tenants(service) else ()
    sends = tuple(topic for topic in (*TOPICS, *of_tenants) if service in topic.writers)
    receives = (*LISTENS[service], *(topic for topic in of_tenants if topic.is_commands))
    topics = tuple(topic for topic in (*TOPICS, *of_tenants) if topic in sends or topic in receives)
    document = _document(service, topics, _operations(sends, receives))
    for topic in LISTENS[service]:
        channel = f"#/channels/{_channel_id(topic)}"
        messages = [{"$ref": f"{channel}/messages/{name}"} for name in HANDLED[service][topic.name]]
        document["operations"][f"receive.{_channel_id(topic)}"]["messages"] = messages
    return document


def _document(title: str, topics: tuple[Topic, ...], operations: dict[str, Any]) -> dict[str, Any]:
    messages = {message.__name__: message for topic in topics for message in topic.messages}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": VERSION, "license": {"name": "Apache-2.0"}},
        "defaultContentType": CONTENT_TYPE,
        "servers": SERVERS,
        "channels": {_channel_id(topic): _channel(topic) for topic in topics},
        "operations": operations,
        "components": {
            "messages": {name: _message(messages[name]) for name in sorted(messages)},
            "messageTraits": {"cloudEvent": {"headers": HEADERS}},
            "securitySchemes": SECURITY_SCHEMES,
        },
    }


def _channel_id(topic: Topic) -> str:
    """Return an id of the topic that a JSON pointer can contain as it is."""
    return topic.name.replace("{tenant}", "TENANT")


def _channel(topic: Topic) -> dict[str, Any]:
    names = [message.__name__ for message in topic.messages]
    parameters = {"parameters": {"tenant": TENANT_PARAMETER}} if "{tenant}" in topic.name else {}
    return {
        "address": topic.name,
        **parameters,
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
        f"{action}.{_channel_id(topic)}": {
            "action": action,
            "channel": {"$ref": f"#/channels/{_channel_id(topic)}"},
        }
        for action, topic in pairs
    }
