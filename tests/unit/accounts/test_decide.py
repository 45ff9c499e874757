"""What a command may make of a user, whatever it says."""

from dataclasses import replace

import pytest

from schemas.access import AddSubscriber, AddTenantUser
from schemas.rights import Right, group_prefix
from services.accounts import decide
from services.accounts.model import KafkaUser, UserState
from shared.errors import Refused
from shared.passwords import derived_password

NONCE, OTHER = "0" * 32, "1" * 32
ACTIVE = KafkaUser("subscriber-billing", None, ("job.events",), (), NONCE, UserState.ACTIVE, 4)


def add_subscriber(**changes):
    return AddSubscriber(
        **{"user": "subscriber-billing", "topics": ("job.events",), "nonce": OTHER} | changes
    )


def add_tenant_user(user: str):
    return AddTenantUser(user=user, tenant="acme", nonce=OTHER)


def refusal_of(decision, *arguments) -> str:
    with pytest.raises(Refused) as refused:
        decision(*arguments)
    assert refused.value.param in {None, "user", "name", "topics"}
    return refused.value.code


@pytest.mark.parametrize("user", ["tenant-acme", "tenant-acme.ci"])
def test_a_tenants_user_has_its_tenants_topics_and_groups(user):
    added = decide.tenant_user_of(add_tenant_user(user), None)
    assert (added.tenant, added.nonce) == ("acme", OTHER)
    assert added.rights == [
        Right(user, "read", "topic", "tenant.acme.events"),
        Right(user, "write", "topic", "tenant.acme.commands"),
        Right(user, "read", "group", "tenant-acme.", prefixed=True),
    ]


@pytest.mark.parametrize(
    "user",
    [
        "gateway",
        "broker",
        "tenant-other",
        "tenant-acme.",
        "tenant-acme.A",
        "tenant-acme.a.b",
        "tenant-acmeci",
    ],
)
def test_no_other_name_is_a_tenants_user(user):
    assert refusal_of(decide.tenant_user_of, add_tenant_user(user), None) in {"wrong_user", "wrong_name"}


def test_a_subscriber_reads_what_is_named_once_and_writes_nothing():
    command = add_subscriber(topics=("job.events", "job.events"), tenants=("acme",))
    user = decide.subscriber_of(command, None)
    assert (user.reads, user.writes) == (("job.events", "tenant.acme.events"), ())
    assert {right.operation for right in user.rights} == {"read"}


@pytest.mark.parametrize(
    "topic", ["job.commands", "run.metrics", "agent.reports", "parked.ingest", "tenant.acme.events", "*", ""]
)
def test_a_subscriber_reads_lifecycle_topics_alone(topic):
    assert refusal_of(decide.subscriber_of, add_subscriber(topics=(topic,)), None) == "no_lifecycle_topic"


def test_a_refusal_names_the_topics_that_may_be_read():
    with pytest.raises(Refused, match=r"found 'run\.metrics', expected of .*, job\.events, "):
        decide.subscriber_of(add_subscriber(topics=("run.metrics",)), None)


def test_a_subscriber_reads_something():
    assert refusal_of(decide.subscriber_of, add_subscriber(topics=()), None) == "nothing_to_read"


@pytest.mark.parametrize("user", ["billing", "subscriber-", "subscriber-a.b", "tenant-acme"])
def test_no_other_name_is_a_subscriber(user):
    assert refusal_of(decide.subscriber_of, add_subscriber(user=user), None) in {"wrong_user", "wrong_name"}


def test_a_user_is_made_once_and_again_after_its_removal():
    assert refusal_of(decide.subscriber_of, add_subscriber(), ACTIVE) == "user_exists"
    removed = decide.removed(ACTIVE, ACTIVE.name)
    assert removed.rights == []
    again = decide.subscriber_of(add_subscriber(), removed.applied)
    assert (again.state, again.nonce, again.revision) == (UserState.CHANGING, OTHER, 6)
    assert (again.reads, again.writes) == (("job.events",), ())


def test_a_user_that_is_made_again_has_the_topics_of_the_new_command():
    first = decide.tenant_user_of(add_tenant_user("tenant-acme"), None)
    old = replace(first, reads=("old",), writes=("older",), nonce=NONCE, state=UserState.REMOVED)
    again = decide.tenant_user_of(add_tenant_user("tenant-acme"), old)
    assert again == replace(first, state=UserState.CHANGING, revision=old.revision + 1)


def test_a_rotation_changes_the_nonce_alone():
    rotated = decide.rotated(ACTIVE, ACTIVE.name, OTHER)
    assert rotated == replace(ACTIVE, nonce=OTHER, revision=5, state=UserState.CHANGING)
    assert rotated.applied.state is UserState.ACTIVE


@pytest.mark.parametrize("existing", [None, decide.removed(ACTIVE, ACTIVE.name).applied])
def test_who_is_not_there_is_neither_rotated_nor_removed(existing):
    assert refusal_of(decide.rotated, existing, "gateway", OTHER) == "unknown_user"
    assert refusal_of(decide.removed, existing, "gateway") == "unknown_user"
    with pytest.raises(Refused, match=r"^Kafka user 'xxx") as refused:
        decide.removed(existing, "x" * 200)
    assert (refused.value.param, refused.value.message.count("x")) == ("user", 80)


def test_no_prefix_of_a_group_begins_anothers():
    users = ["tenant-a", "tenant-a.b", "tenant-a-b", "tenant-ab", "subscriber-a", "subscriber-a-b"]
    owners = {group_prefix(user) for user in users}
    assert len(owners) == 5
    assert not any(one.startswith(other) for one in owners for other in owners if one != other)


def test_a_password_follows_from_secret_user_and_nonce():
    passwords = {
        derived_password(*each)
        for each in (("s", "a", NONCE), ("s", "a", OTHER), ("s", "b", NONCE), ("t", "a", NONCE))
    }
    assert len(passwords) == 4
