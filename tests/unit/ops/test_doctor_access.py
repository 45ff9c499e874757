"""I16 on a broker that has other users than accounts has written down."""

from dataclasses import replace
from typing import Any

import pytest

from ops.doctor.finding import Finding
from ops.doctor.history import Access, KafkaUser
from schemas.rights import Right, tenant_user_rights, user_rights
from shared.messaging.administration import ClientQuotas
from tests.unit.ops.histories import a_history, a_snapshot, alarms

QUOTAS = ClientQuotas(1024, 2048, 50)
USERS = tuple(KafkaUser(f"subscriber-{name}", ("job.events",), (), "active") for name in "abc")
NAME = "subscriber-a"


def access_of(*users: KafkaUser) -> Access:
    """A broker that has them as they are written down, and the user of a tenant that was provisioned."""
    names = {user.name for user in users}
    rights = {
        right for user in users for right in user_rights(user.name, reads=user.reads, writes=user.writes)
    }
    return Access(
        frozenset({*names, "tenant-demo"}),
        frozenset(rights | {*tenant_user_rights("tenant-demo", "demo")}),
        dict.fromkeys(names, QUOTAS),
    )


def findings(access: Access | None, users: tuple[KafkaUser, ...] = USERS) -> list[Finding]:
    snapshot = a_snapshot(kafka_users=users, tenants=frozenset({"demo"}))
    return alarms(replace(a_history(snapshot=snapshot), access=access)).get("I16", [])


def test_what_accounts_has_is_what_the_broker_has():
    assert findings(access_of(*USERS)) == []
    assert findings(None) == [], "the operator may not look"


@pytest.mark.parametrize(
    ("what", "changes", "found"),
    [
        ("password", {"users": frozenset({"subscriber-b", "subscriber-c"})}, "no password"),
        ("quotas", {"quotas": {"subscriber-b": QUOTAS, "subscriber-c": QUOTAS}}, str(ClientQuotas())),
    ],
)
def test_a_user_that_lacks_something(what: str, changes: dict[str, Any], found: str):
    (finding,) = findings(replace(access_of(*USERS), **changes))
    assert (finding.where, finding.found) == (f"Kafka user {NAME}, {what}", found)


def test_a_user_that_lacks_a_right_or_has_one_too_many():
    access = access_of(*USERS)
    rights = {right for right in access.rights if right != Right(NAME, "read", "topic", "job.events")}
    (finding,) = findings(replace(access, rights=frozenset(rights)))
    assert finding.found == "too many: none; missing: read topic job.events"
    more = Right(NAME, "write", "topic", "job.events")
    (finding,) = findings(replace(access, rights=access.rights | {more}))
    assert (finding.where, finding.found) == (
        f"Kafka user {NAME}, rights",
        "too many: write topic job.events; missing: none",
    )


def test_a_user_that_is_removed_has_nothing_left():
    removed = replace(USERS[0], state="removed")
    wheres = {each.where for each in findings(access_of(*USERS), (removed, *USERS[1:]))}
    assert wheres == {f"Kafka user {NAME}, {what}" for what in ("password", "rights", "quotas")}
    assert findings(access_of(*USERS[1:]), (removed, *USERS[1:])) == []


def test_a_user_that_is_being_changed_may_have_either():
    changing = replace(USERS[0], state="changing")
    assert findings(access_of(*USERS), (changing, *USERS[1:])) == []
    assert findings(access_of(*USERS[1:]), (changing, *USERS[1:])) == []


def test_a_user_that_nobody_has_written_down():
    (finding,) = findings(access_of(*USERS), USERS[1:])
    assert (finding.where, finding.expected) == (f"Kafka user {NAME}", "none: accounts does not have it")


def test_the_provisioned_user_of_a_tenant_has_the_rights_of_one():
    more = Right("tenant-demo", "write", "topic", "job.events")
    access = access_of(*USERS)
    (finding,) = findings(replace(access, rights=access.rights | {more}))
    assert finding.where == "Kafka user tenant-demo, rights"
