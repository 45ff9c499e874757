"""Users, rights and quotas of a broker that allows nothing by default.

Requests that aiokafka's client does not offer are built from its own protocol classes (decision 0074). The module
calls a private method of the pinned aiokafka; tests/integration/local checks it against the broker.
"""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import ClusterAuthorizationFailedError, KafkaError
from aiokafka.protocol.admin import CreateAclsRequest_v1, DeleteAclsRequest_v1, DescribeAclsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Float64,
    Int8,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from schemas.rights import Right
from shared.messaging.kafka import sasl

SCRAM_ITERATIONS = 4096
LOCKED_ITERATIONS = SCRAM_ITERATIONS + 1
"""Marks a user as locked: the number of iterations is all that a listing shows of a password."""
# Codes of the Kafka protocol.
SCRAM_SHA_512 = 2
OPERATIONS = {
    "read": 3,
    "write": 4,
    "create": 5,
    "alter": 7,
    "describe": 8,
    "describe_configs": 10,
    "alter_configs": 11,
}
RESOURCES = {"topic": 2, "group": 3, "cluster": 4}
CLUSTER = "kafka-cluster"
PRINCIPAL = "User:"
LITERAL, PREFIXED = 3, 4
ALLOW = 3
ANY = 1
USER = "user"
NAMED = 2

APPLIED_SECONDS = 60.0
POLL_SECONDS = 0.05

Acl = tuple[int, str, int, str, str, int, int]
"""An ACL consists of resource type, name and pattern; principal, host, operation and permission."""


class NotAuthorized(KafkaError):
    """The caller's user may not see or change users, rights or quotas."""


@dataclass(frozen=True)
class ScramUser:
    name: str
    iterations: int
    salt: bytes
    salted_password: bytes


@dataclass(frozen=True)
class ClientQuotas:
    """Limits on all connections of one user together, at each broker; None means no limit."""

    producer_byte_rate: int | None = None
    consumer_byte_rate: int | None = None
    request_percentage: int | None = None
    """Share of the broker's thread time in percent; 100 is one thread."""


@asynccontextmanager
async def administrator(
    bootstrap: str,
    user: str,
    password: str,
    *,
    ca_file: Path | None = None,
    mechanism: str = "SCRAM-SHA-512",
) -> AsyncIterator[AIOKafkaAdminClient]:
    """Start an admin client with this user's rights and close it at the end."""
    login = sasl(user, password, ca_file=ca_file, mechanism=mechanism)
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, **login)
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


def scram_user(name: str, password: str, *, iterations: int = SCRAM_ITERATIONS) -> ScramUser:
    salt = secrets.token_bytes(24)
    salted = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations)
    return ScramUser(name, iterations, salt, salted)


async def replace_rights(
    admin: AIOKafkaAdminClient, rights: Iterable[Right], *, owns: Callable[[str, str], bool]
) -> None:
    """Make these rights the only ones among those that the caller owns.

    `owns` decides by user and name of the resource. Returns once the broker applies the rights, which is later
    than its answer.
    """
    acls = {_acl(right) for right in rights}

    async def owned() -> set[Acl]:
        return {acl for acl in await _known(admin) if owns(acl[3].removeprefix(PRINCIPAL), acl[1])}

    present = await owned()
    if missing := acls - present:
        await _create(admin, missing)
    if stale := present - acls:
        await _delete(admin, stale)
    async with asyncio.timeout(APPLIED_SECONDS):
        while await owned() != acls:  # noqa: ASYNC110 - the broker announces nothing
            await asyncio.sleep(POLL_SECONDS)


def _acl(right: Right) -> Acl:
    pattern = PREFIXED if right.prefixed else LITERAL
    what = (RESOURCES[right.resource], right.name, pattern)
    return (*what, f"{PRINCIPAL}{right.user}", "*", OPERATIONS[right.operation], ALLOW)


async def _known(admin: AIOKafkaAdminClient) -> set[Acl]:
    response = await _send(admin, DescribeAclsRequest(ANY, None, ANY, None, None, ANY, ANY))
    _check("listing of ACLs", [(response.error_code, response.error_message)])
    return {(*what, *acl) for *what, acls in response.resources for acl in acls}


async def list_rights(admin: AIOKafkaAdminClient) -> set[Right]:
    """Return all rights that are granted to any user, without what a Right cannot express, such as denials."""
    operations, resources = ({code: name for name, code in each.items()} for each in (OPERATIONS, RESOURCES))
    return {
        Right(user.removeprefix(PRINCIPAL), operations[operation], resources[kind], name, pattern == PREFIXED)  # type: ignore[arg-type]
        for kind, name, pattern, user, _, operation, permission in await _known(admin)
        if permission == ALLOW and kind in resources and operation in operations
    }


async def _create(admin: AIOKafkaAdminClient, acls: Iterable[Acl]) -> None:
    response = await _send(admin, CreateAcls(acls))
    _check("ACLs", [(code, text) for code, text in response.creation_responses])


async def _delete(admin: AIOKafkaAdminClient, acls: Iterable[Acl]) -> None:
    response = await _send(admin, DeleteAcls(acls))
    _check("deletions of ACLs", [(code, text) for code, text, _ in response.filter_responses])


class CreateAcls(Request[CreateAclsRequest_v1]):
    """A request that creates many ACLs at once; aiokafka's own request carries one."""

    API_KEY = 30

    def __init__(self, acls: Iterable[Acl]) -> None:
        self._acls = list(acls)

    def build(self, request_struct_class: type[CreateAclsRequest_v1]) -> CreateAclsRequest_v1:
        return request_struct_class(self._acls)


class DeleteAcls(Request[DeleteAclsRequest_v1]):
    """A request that deletes many ACLs at once, each named exactly."""

    API_KEY = 31

    def __init__(self, acls: Iterable[Acl]) -> None:
        self._acls = list(acls)

    def build(self, request_struct_class: type[DeleteAclsRequest_v1]) -> DeleteAclsRequest_v1:
        return request_struct_class(self._acls)


async def set_passwords(admin: AIOKafkaAdminClient, users: Iterable[ScramUser]) -> None:
    """Create these users or change their passwords."""
    response = await _send(admin, AlterScramUsers(users))
    _check("users", [(code, f"{user}: {text}") for user, code, text, _ in response.results])


async def lock_user(admin: AIOKafkaAdminClient, name: str) -> None:
    """Give the user an unknown random password. Kafka 4.3 must not be asked to delete one (decision 0050)."""
    await set_passwords(admin, [scram_user(name, secrets.token_hex(32), iterations=LOCKED_ITERATIONS)])


async def list_users(admin: AIOKafkaAdminClient) -> set[str]:
    """Return the names of the users that have a password and are not locked."""
    response = await _send(admin, DescribeScramUsers())
    _check("listing of users", [(response.error_code, response.error_message)])
    return {
        user
        for user, _, _, credentials, _ in response.results
        if any(iterations != LOCKED_ITERATIONS for _, iterations, _ in credentials)
    }


class DescribeScramUsersResponse_v0(Response):  # noqa: N801 - aiokafka's way to name versions
    API_KEY = 50
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", CompactString("utf-8")),
        (
            "results",
            CompactArray(
                ("user", CompactString("utf-8")),
                ("error_code", Int16),
                ("error_message", CompactString("utf-8")),
                (
                    "credentials",
                    CompactArray(("mechanism", Int8), ("iterations", Int32), ("tags", TaggedFields)),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeScramUsersRequest_v0(RequestStruct):  # noqa: N801 - aiokafka's way to name versions
    FLEXIBLE_VERSION: ClassVar[bool] = True
    API_KEY = 50
    API_VERSION = 0
    RESPONSE_TYPE = DescribeScramUsersResponse_v0
    SCHEMA = Schema(
        ("users", CompactArray(("name", CompactString("utf-8")), ("tags", TaggedFields))),
        ("tags", TaggedFields),
    )


class DescribeScramUsers(Request[DescribeScramUsersRequest_v0]):
    """A request that lists all users, without their passwords."""

    API_KEY = 50

    def build(self, request_struct_class: type[DescribeScramUsersRequest_v0]) -> DescribeScramUsersRequest_v0:
        return request_struct_class([], {})


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


_ENTITY = CompactArray(
    ("entity_type", CompactString("utf-8")), ("entity_name", CompactString("utf-8")), ("tags", TaggedFields)
)


async def set_quotas(admin: AIOKafkaAdminClient, users: Iterable[str], quotas: ClientQuotas) -> None:
    """Make these the only quotas of each user. Returns once the broker applies them."""
    names = set(users)
    if not names:
        return
    response = await _send(admin, AlterQuotas(names, asdict(quotas)))
    _check("quotas", [(code, text) for code, text, *_ in response.entries])
    async with asyncio.timeout(APPLIED_SECONDS):
        while {*(await quotas_of(admin, names)).values()} != {quotas}:  # noqa: ASYNC110 - the broker announces nothing
            await asyncio.sleep(POLL_SECONDS)


async def quotas_of(admin: AIOKafkaAdminClient, users: Iterable[str]) -> dict[str, ClientQuotas]:
    response = await _send(admin, DescribeQuotas())
    _check("listing of quotas", [(response.error_code, response.error_message)])
    known = {name: limits for ((_, name, _),), limits, _ in response.entries or ()}
    return {user: _client_quotas(known.get(user, ())) for user in users}


def _client_quotas(limits: Iterable[tuple[str, float, Any]]) -> ClientQuotas:
    """Convert the limits that ClientQuotas names; other limits of the user do not belong to this module."""
    names = {each.name for each in fields(ClientQuotas)}
    return ClientQuotas(**{name: int(limit) for name, limit, _ in limits if name in names})


class AlterQuotasResponse_v1(Response):  # noqa: N801 - aiokafka's way to name versions
    API_KEY = 49
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "entries",
            CompactArray(
                ("error_code", Int16),
                ("error_message", CompactString("utf-8")),
                ("entity", _ENTITY),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class AlterQuotasRequest_v1(RequestStruct):  # noqa: N801 - aiokafka's way to name versions
    FLEXIBLE_VERSION: ClassVar[bool] = True
    API_KEY = 49
    API_VERSION = 1
    RESPONSE_TYPE = AlterQuotasResponse_v1
    SCHEMA = Schema(
        (
            "entries",
            CompactArray(
                ("entity", _ENTITY),
                (
                    "ops",
                    CompactArray(
                        ("key", CompactString("utf-8")),
                        ("value", Float64),
                        ("remove", Boolean),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("validate_only", Boolean),
        ("tags", TaggedFields),
    )


class AlterQuotas(Request[AlterQuotasRequest_v1]):
    API_KEY = 49

    def __init__(self, users: Iterable[str], limits: Mapping[str, int | None]) -> None:
        self._users = tuple(users)
        self._limits = limits

    def build(self, request_struct_class: type[AlterQuotasRequest_v1]) -> AlterQuotasRequest_v1:
        ops: list[Any] = [
            (name, float(limit or 0), limit is None, {}) for name, limit in self._limits.items()
        ]
        return request_struct_class([([(USER, user, {})], ops, {}) for user in self._users], False, {})


class DescribeQuotasResponse_v1(Response):  # noqa: N801 - aiokafka's way to name versions
    API_KEY = 48
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", CompactString("utf-8")),
        (
            "entries",
            CompactArray(
                ("entity", _ENTITY),
                (
                    "limits",
                    CompactArray(("key", CompactString("utf-8")), ("value", Float64), ("tags", TaggedFields)),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeQuotasRequest_v1(RequestStruct):  # noqa: N801 - aiokafka's way to name versions
    FLEXIBLE_VERSION: ClassVar[bool] = True
    API_KEY = 48
    API_VERSION = 1
    RESPONSE_TYPE = DescribeQuotasResponse_v1
    SCHEMA = Schema(
        (
            "components",
            CompactArray(
                ("entity_type", CompactString("utf-8")),
                ("match_type", Int8),
                ("match", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("strict", Boolean),
        ("tags", TaggedFields),
    )


class DescribeQuotas(Request[DescribeQuotasRequest_v1]):
    """A request that lists the quotas of all users that have quotas of their own."""

    API_KEY = 48

    def build(self, request_struct_class: type[DescribeQuotasRequest_v1]) -> DescribeQuotasRequest_v1:
        return request_struct_class([(USER, NAMED, None, {})], True, {})


async def _send(admin: AIOKafkaAdminClient, request: Request[Any]) -> Any:
    return await admin._send_to_controller(request)  # noqa: SLF001 - the client has no public door for these


def _check(what: str, results: Sequence[tuple[int, str | None]]) -> None:
    """Raise KafkaError if a result is an error, or NotAuthorized if the caller lacks the right for it."""
    refused = [f"error {code} {text}" for code, text in results if code != 0]
    if any(code == ClusterAuthorizationFailedError.errno for code, _ in results):
        raise NotAuthorized(f"{what}: {refused[0]}")
    if refused:
        raise KafkaError(f"refused {len(refused)} of {len(results)} {what}; the first: {refused[0]}")
