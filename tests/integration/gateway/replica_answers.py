"""What an engine answers, as bytes of HTTP: whole, or as a stream of chunks."""

import json
from typing import Any


def response(status: int, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"connection: close\r\n\r\n"
    )
    return head.encode() + body


def events(chunks: list[dict[str, Any]]) -> bytes:
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def unfinished(chunks: list[dict[str, Any]]) -> bytes:
    """A stream of which more is announced than there is."""
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return (
        f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n{body}".encode()
    )


def call_in_pieces(model: str) -> list[dict[str, Any]]:
    """A call as vLLM streams it: its name first, then its arguments bit by bit."""
    begun = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    pieces = [{"index": 0, "function": {"arguments": piece}} for piece in ('{"city"', ': "Bonn"}')]
    deltas = [{"tool_calls": [piece]} for piece in (begun, *pieces)]
    return [
        {
            "object": "chat.completion.chunk",
            "model": model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
        }
        for delta, reason in [*((delta, None) for delta in deltas), ({}, "tool_calls")]
    ]


def words_in_pieces(model: str, words: tuple[str, ...]) -> list[dict[str, Any]]:
    """An answer as vLLM streams it: its role first, and last what it used."""
    deltas = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
    last = len(deltas) - 1
    chunks: list[dict[str, Any]] = [
        {"index": 0, "delta": delta, "finish_reason": "stop" if number == last else None}
        for number, delta in enumerate(deltas)
    ]
    used = {"prompt_tokens": 3, "completion_tokens": len(words), "total_tokens": 3 + len(words)}
    common = {"object": "chat.completion.chunk", "model": model}
    return [*(common | {"choices": [chunk]} for chunk in chunks), common | {"choices": [], "usage": used}]
