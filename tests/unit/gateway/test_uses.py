"""Which deployed models are asked for, as the serving controller hears it."""

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
def usage(site: Any) -> Uses:
    return Uses(site)


async def test_each_slot_is_reported_once_for_all_its_requests(site, usage):
    for slot in ("a", "b", "a"):
        usage.note("acme", slot)
    await usage.report()
    await usage.report()
    assert site.names() == [["acme/b", "acme/a"]]


async def test_what_is_waited_for_is_reported_apart_and_sooner(site, usage):
    usage.note("acme", "a")
    usage.wait_for("acme", "b")
    await usage.report_awaited()
    assert site.names() == [["acme/b"]]
    await usage.report_awaited()
    assert len(site.sent) == 1
    assert uses.REPORT_AWAITED_EVERY < uses.REPORT_EVERY


async def test_of_more_than_a_message_holds_those_asked_for_last_are_reported(site, usage):
    for number in range(uses.MOST + 3):
        usage.note("acme", f"slot-{number}")
    usage.note("acme", "slot-3")
    await usage.report()
    [names] = site.names()
    assert len(names) == uses.MOST
    assert (names[0], names[-1]) == ("acme/slot-4", "acme/slot-3")


async def test_what_could_not_be_reported_is_asked_for_again(site, usage):
    site.is_away = True
    usage.wait_for("acme", "a")
    with pytest.raises(ConnectionError):
        await usage.report_awaited()
    site.is_away = False
    usage.wait_for("acme", "a")
    await usage.report_awaited()
    assert site.names() == [["acme/a"]]
