"""Static members of a consumer group: the name of a process there, and the removal of what it was before.

A static member that stops keeps its partitions until its session ends, so that a restart is no rebalance. A process
that comes back under another name must not wait for that (decision 0102).

The requests are built from aiokafka's protocol classes, and sent by a private method of the pinned aiokafka;
tests/integration/kernel/test_new_topic.py checks them against the broker.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, UnknownMemberIdError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Bytes, Int16, Int32, Schema, String

from shared.log import get_logger
from shared.retry import RetryPolicy, retry_until_available

log = get_logger(__name__)

COORDINATOR_ABSENCE = RetryPolicy(limit=timedelta(seconds=5), longest=timedelta(seconds=1))
REMOVAL_SECONDS = 10.0


def member_name(process: str, topics: Iterable[str]) -> str:
    """Return the name by which Kafka knows a process in its group: another one where it listens to other topics.

    A process that comes back under its name has the partitions that it had, whatever it asks for now: a new topic
    would never be read.
    """
    return f"{process}-{hashlib.sha256(' '.join(sorted(topics)).encode()).hexdigest()[:8]}"


def members_of(process: str, names: Iterable[str]) -> list[str]:
    """Return those names that member_name may have given the process, or a release before digests of topics."""
    return sorted(filter(re.compile(rf"{re.escape(process)}(-[0-9a-f]{{8}})?").fullmatch, names))


async def remove_former_members(
    admin: AIOKafkaAdminClient, group: str, *, process: str, joins_as: str
) -> None:
    """Remove the members that the process was under other names, whose partitions nobody would read for a while.

    It ends within REMOVAL_SECONDS, and an error is logged: the process can join while they are members.
    """

    async def remove() -> list[str]:
        former = [
            name for name in members_of(process, await static_members(admin, group)) if name != joins_as
        ]
        await remove_members(admin, group, former)
        return former

    try:
        async with asyncio.timeout(REMOVAL_SECONDS):
            removed = await retry_until_available(
                remove, is_away=_is_retriable, retry_policy=COORDINATOR_ABSENCE
            )
    except (KafkaError, OSError, TimeoutError) as error:
        log.warning(
            "former members keep their partitions until their sessions end",
            group=group,
            error=f"{type(error).__name__}: {error}",
        )
    else:
        if removed:
            log.info("former members were removed from the group", group=group, members=removed)


def _is_retriable(error: Exception) -> bool:
    return isinstance(error, KafkaError) and error.retriable


async def static_members(admin: AIOKafkaAdminClient, group: str) -> dict[str, str]:
    """Return the ids that Kafka gave the group's static members, by name; none if there is no such group."""
    response = await _send_to_coordinator(admin, group, DescribeGroup(group))
    ((code, _, _, _, _, members, _),) = response.groups
    _check(f"description of group {group}", code)
    return {name: member_id for member_id, name, *_ in members if name is not None}


async def remove_members(admin: AIOKafkaAdminClient, group: str, names: Iterable[str]) -> None:
    """Remove these static members, unless they are none any more: their partitions go to the others at once."""
    if not (names := tuple(names)):
        return
    response = await _send_to_coordinator(admin, group, RemoveMembers(group, names))
    _check(f"removal of members from group {group}", response.error_code)
    for _, name, code in response.members:
        if code != UnknownMemberIdError.errno:
            _check(f"removal of member {name} from group {group}", code)


async def _send_to_coordinator(admin: AIOKafkaAdminClient, group: str, request: Request[Any]) -> Any:
    return await admin._send_request(request, await admin.find_coordinator(group))  # noqa: SLF001


def _check(what: str, code: int) -> None:
    if code:
        raise for_code(code)(what)


class DescribeGroupsResponse_v4(Response):  # noqa: N801 - aiokafka's way to name versions
    API_KEY = 15
    API_VERSION = 4
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            Array(
                ("error_code", Int16),
                ("group", String("utf-8")),
                ("state", String("utf-8")),
                ("protocol_type", String("utf-8")),
                ("protocol", String("utf-8")),
                (
                    "members",
                    Array(
                        ("member_id", String("utf-8")),
                        ("group_instance_id", String("utf-8")),
                        ("client_id", String("utf-8")),
                        ("client_host", String("utf-8")),
                        ("member_metadata", Bytes),
                        ("member_assignment", Bytes),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
    )


class DescribeGroupsRequest_v4(RequestStruct):  # noqa: N801 - aiokafka's way to name versions
    API_KEY = 15
    API_VERSION = 4
    RESPONSE_TYPE = DescribeGroupsResponse_v4
    SCHEMA = Schema(("groups", Array(String("utf-8"))), ("include_authorized_operations", Boolean))


class DescribeGroup(Request[DescribeGroupsRequest_v4]):
    """A request whose answer names static members; that of aiokafka's own does not."""

    API_KEY = 15

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: type[DescribeGroupsRequest_v4]) -> DescribeGroupsRequest_v4:
        return request_struct_class([self._group], False)


class LeaveGroupResponse_v3(Response):  # noqa: N801 - aiokafka's way to name versions
    API_KEY = 13
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        (
            "members",
            Array(
                ("member_id", String("utf-8")),
                ("group_instance_id", String("utf-8")),
                ("error_code", Int16),
            ),
        ),
    )


class LeaveGroupRequest_v3(RequestStruct):  # noqa: N801 - aiokafka's way to name versions
    API_KEY = 13
    API_VERSION = 3
    RESPONSE_TYPE = LeaveGroupResponse_v3
    SCHEMA = Schema(
        ("group", String("utf-8")),
        ("members", Array(("member_id", String("utf-8")), ("group_instance_id", String("utf-8")))),
    )


class RemoveMembers(Request[LeaveGroupRequest_v3]):
    """A request that removes members by their static names; aiokafka's own removes the member that sends it."""

    API_KEY = 13

    def __init__(self, group: str, names: Iterable[str]) -> None:
        self._group = group
        self._members = [("", name) for name in names]

    def build(self, request_struct_class: type[LeaveGroupRequest_v3]) -> LeaveGroupRequest_v3:
        return request_struct_class(self._group, self._members)
