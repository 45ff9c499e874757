"""Old versions of messages, made new step by step. Each step is pure and kept for ever."""

from collections.abc import Callable
from typing import Any

Payload = dict[str, Any]
Upcast = Callable[[Payload], Payload]

UPCASTS: dict[tuple[str, int], Upcast] = {}
"""(type, version) -> the function that turns that version's payload into the next version's."""


def upcasts(message_type: str, *, since: int) -> Callable[[Upcast], Upcast]:
    """Register the step from version `since` to `since + 1`."""

    def register(step: Upcast) -> Upcast:
        if (message_type, since) in UPCASTS:
            raise ValueError(f"two upcasters of {message_type} from version {since}")
        UPCASTS[message_type, since] = step
        return step

    return register


def upcast(message_type: str, version: int, payload: Payload, *, to: int) -> Payload:
    """Bring a payload to version `to`. Raises KeyError where a step is missing."""
    for step in range(version, to):
        payload = UPCASTS[message_type, step](payload)
    return payload


@upcasts("AdaptersStale", since=1)
def without_the_list_of_versions(payload: Payload) -> Payload:
    return {name: value for name, value in payload.items() if name != "model_ids"}
