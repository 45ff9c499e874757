"""What the serving controller is told of which deployed models are asked for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from schemas.deployment import UseAdapters
from services.gateway import uses
from services.gateway.uses import Uses


class Site:
    """A service that sends, or whose database is away."""

    def __init__(self) -> None:
        self.sent: list[UseAdapters] = []
        self.is_away = False

    @asynccontextmanager
    async def unit(self) -> AsyncIterator[Any]:
        if self.is_away:
            raise ConnectionError("the database is away")
        yield self

    async def emit(self, message: UseAdapters) -> None:
        self.sent.append(message)

    def names(self) -> list[list[str]]:
        return [[f"{each.tenant}/{each.slot}" for each in message.slots] for message in self.sent]


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def told(site: Any) -> Uses:
    return Uses(site)


async def test_each_slot_is_told_once_for_all_its_requests(site, told):
    for slot in ("a", "b", "a"):
        told.note("acme", slot)
    await told.tell()
    await told.tell()
    assert site.names() == [["acme/b", "acme/a"]]


async def test_what_is_waited_for_is_told_apart_and_sooner(site, told):
    told.note("acme", "a")
    told.wait_for("acme", "b")
    await told.tell_awaited()
    assert site.names() == [["acme/b"]]
    await told.tell_awaited()
    assert len(site.sent) == 1
    assert uses.TELL_AWAITED_EVERY < uses.TELL_EVERY


async def test_of_more_than_a_message_holds_those_asked_for_last_are_told(site, told):
    for number in range(uses.MOST + 3):
        told.note("acme", f"slot-{number}")
    told.note("acme", "slot-3")
    await told.tell()
    [names] = site.names()
    assert len(names) == uses.MOST
    assert (names[0], names[-1]) == ("acme/slot-4", "acme/slot-3")


async def test_what_could_not_be_told_is_asked_for_again(site, told):
    site.is_away = True
    told.wait_for("acme", "a")
    with pytest.raises(ConnectionError):
        await told.tell_awaited()
    site.is_away = False
    told.wait_for("acme", "a")
    await told.tell_awaited()
    assert site.names() == [["acme/a"]]
