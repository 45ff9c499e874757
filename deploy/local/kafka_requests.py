"""Administration that aiokafka's client does not offer, spoken with aiokafka's own protocol classes.

Reaches into a private method of the pinned aiokafka; tests/integration/local holds it to the broker.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest_v1, DeleteAclsRequest_v1
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from deploy.local.problems import StackError
from deploy.local.rights import Right

# Codes of the Kafka protocol.
SCRAM_SHA_512 = 2
OPERATIONS = {"read": 3, "write": 4, "describe": 8}
RESOURCES = {"topic": 2, "group": 3}
LITERAL, PREFIXED = 3, 4
ALLOW = 3
ANY = 1


@dataclass(frozen=True)
class ScramUser:
    name: str
    iterations: int
    salt: bytes
    salted_password: bytes


class CreateRights(Request[CreateAclsRequest_v1]):
    API_KEY = 30

    def __init__(self, rights: Iterable[Right]) -> None:
        self._rights = tuple(rights)

    def build(self, request_struct_class: type[CreateAclsRequest_v1]) -> CreateAclsRequest_v1:
        return request_struct_class([_acl(right) for right in self._rights])

    async def send(self, admin: AIOKafkaAdminClient) -> None:
        response = await _send(admin, self)
        _check("ACLs", [(code, text) for code, text in response.creation_responses])


def _acl(right: Right) -> tuple[Any, ...]:
    pattern = PREFIXED if right.prefixed else LITERAL
    what = (RESOURCES[right.resource], right.name, pattern)
    return (*what, f"User:{right.user}", "*", OPERATIONS[right.operation], ALLOW)


class DeleteAllRights(Request[DeleteAclsRequest_v1]):
    API_KEY = 31

    def build(self, request_struct_class: type[DeleteAclsRequest_v1]) -> DeleteAclsRequest_v1:
        return request_struct_class([(ANY, None, ANY, None, None, ANY, ANY)])

    async def send(self, admin: AIOKafkaAdminClient) -> None:
        response = await _send(admin, self)
        _check("deletion of ACLs", [(code, text) for code, text, _ in response.filter_responses])


class AlterScramUsersResponse_v0(Response):  # noqa: N801 - aiokafka's way to name versions
    API_KEY = 51
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            CompactArray(
                ("user", CompactString("utf-8")),
                ("error_code", Int16),
                ("error_message", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class AlterScramUsersRequest_v0(RequestStruct):  # noqa: N801 - aiokafka's way to name versions
    FLEXIBLE_VERSION: ClassVar[bool] = True
    API_KEY = 51
    API_VERSION = 0
    RESPONSE_TYPE = AlterScramUsersResponse_v0
    SCHEMA = Schema(
        (
            "deletions",
            CompactArray(("name", CompactString("utf-8")), ("mechanism", Int8), ("tags", TaggedFields)),
        ),
        (
            "upsertions",
            CompactArray(
                ("name", CompactString("utf-8")),
                ("mechanism", Int8),
                ("iterations", Int32),
                ("salt", CompactBytes),
                ("salted_password", CompactBytes),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class AlterScramUsers(Request[AlterScramUsersRequest_v0]):
    API_KEY = 51

    def __init__(self, users: Iterable[ScramUser]) -> None:
        self._users = tuple(users)

    def build(self, request_struct_class: type[AlterScramUsersRequest_v0]) -> AlterScramUsersRequest_v0:
        upsertions: list[tuple[Any, ...]] = [
            (user.name, SCRAM_SHA_512, user.iterations, user.salt, user.salted_password, {})
            for user in self._users
        ]
        return request_struct_class([], upsertions, {})

    async def send(self, admin: AIOKafkaAdminClient) -> None:
        response = await _send(admin, self)
        _check("users", [(code, f"{user}: {text}") for user, code, text, _ in response.results])


async def _send(admin: AIOKafkaAdminClient, request: Request[Any]) -> Any:
    return await admin._send_to_controller(request)  # noqa: SLF001 - the client has no public door for these


def _check(what: str, results: Sequence[tuple[int, str | None]]) -> None:
    refused = [f"error {code} {text}" for code, text in results if code != 0]
    if refused:
        raise StackError(f"Kafka refused {len(refused)} of {len(results)} {what}; the first: {refused[0]}")
