"""A process removes the members that it was itself, and joins whether or not it could."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, GroupLoadInProgressError
from structlog.testing import capture_logs

from shared.messaging import group_members
from shared.messaging.group_members import member_name, members_of, remove_former_members

NOW = member_name("scheduler-1", ["job.commands", "run.alerts"])
BEFORE = member_name("scheduler-1", ["job.commands"])


def test_a_name_follows_from_the_topics_in_any_order():
    assert member_name("scheduler-1", ["run.alerts", "job.commands"]) == NOW != BEFORE


def test_members_of_a_process_have_its_name_alone_or_with_a_digest():
    names = [NOW, "scheduler-1", BEFORE]
    assert members_of("scheduler-1", names) == sorted(names)


@pytest.mark.parametrize(
    "name",
    [
        member_name("scheduler-10", ["job.commands"]),
        "scheduler-10",
        "scheduler-1-other",
        "scheduler-1-0123456",
        "scheduler-1-012345678",
        "scheduler-1-0123456G",
        "scheduler-1-01234567\n",
        f"x{NOW}",
        "scheduler_1",
        "",
    ],
)
def test_other_names_are_of_others(name: str):
    assert members_of("scheduler-1", [name]) == []


def test_a_process_is_named_literally():
    assert members_of("a.b", ["a.b", "axb"]) == ["a.b"]


class Group:
    """Answers once its errors are used up."""

    def __init__(self, *errors: Exception) -> None:
        self.members = dict.fromkeys((NOW, BEFORE, "scheduler-1", "scheduler-10"), "id")
        self._errors = list(errors)

    async def static_members(self, admin: object, group: str) -> dict[str, str]:
        if self._errors:
            raise self._errors.pop(0)
        return dict(self.members)

    async def remove_members(self, admin: object, group: str, names: list[str]) -> None:
        for name in names:
            del self.members[name]


@pytest.fixture
def removing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Group], Awaitable[list[str]]]:
    """Returns the levels of the log's lines."""

    async def remove(group: Group) -> list[str]:
        monkeypatch.setattr(group_members, "static_members", group.static_members)
        monkeypatch.setattr(group_members, "remove_members", group.remove_members)
        with capture_logs() as lines:
            await remove_former_members(None, "scheduler", process="scheduler-1", joins_as=NOW)  # type: ignore[arg-type]
        return [line["log_level"] for line in lines]

    return remove


async def test_former_members_are_removed_and_named_in_the_log(removing):
    group = Group()
    assert await removing(group) == ["info"]
    assert group.members.keys() == {NOW, "scheduler-10"}
    assert await removing(group) == [], "nothing was left"


async def test_a_coordinator_that_loads_is_waited_for(removing):
    group = Group(GroupLoadInProgressError("loads"))
    assert await removing(group) == ["warning", "info"]
    assert group.members.keys() == {NOW, "scheduler-10"}


async def test_an_error_is_a_warning(removing):
    group = Group(GroupAuthorizationFailedError("not allowed"))
    assert await removing(group) == ["warning"]
    assert BEFORE in group.members


async def test_an_answer_that_does_not_come_is_a_warning(removing, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(group_members, "REMOVAL_SECONDS", 0.05)
    group = Group()
    monkeypatch.setattr(group, "static_members", lambda *_: asyncio.Event().wait())
    assert await removing(group) == ["warning"]
    assert BEFORE in group.members


async def test_a_coordinator_that_stays_away_is_a_warning(removing, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(group_members, "REMOVAL_SECONDS", 0.2)
    group = Group(*[GroupLoadInProgressError("loads")] * 100)
    assert (await removing(group))[-1] == "warning"
    assert BEFORE in group.members
