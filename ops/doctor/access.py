"""I16: the broker has the users that are made while the platform runs as accounts has them."""

from collections import Counter
from collections.abc import Iterable, Iterator

from ops.doctor.finding import Finding
from ops.doctor.history import Access, History, KafkaUser, Limits, Snapshot
from ops.doctor.objects import Say
from schemas.access import subscriber_user, tenant_user
from schemas.rights import Right, tenant_user_rights, user_rights
from shared.messaging.administration import (
    ClientQuotas,
    NotAuthorized,
    administrator,
    list_rights,
    list_users,
    quotas_of,
)
from shared.messaging.login import Login

PREFIXES = (tenant_user(""), subscriber_user(""))
"""How the names of these users begin."""
NONE = ClientQuotas()


async def read_access(login: Login, snapshot: Snapshot, *, say: Say) -> Access | None:
    async with administrator(login.bootstrap, login.username, login.password, ca_file=login.ca_file) as admin:
        try:
            users = {name for name in await list_users(admin) if name.startswith(PREFIXES)}
            rights = {right for right in await list_rights(admin) if right.user.startswith(PREFIXES)}
            quotas = await quotas_of(admin, {*users, *(user.name for user in snapshot.kafka_users)})
        except NotAuthorized:
            say("Kafka: users and rights may not be seen, so they are not checked; bootstrap gives the right")
            return None
    return Access(frozenset(users), frozenset(rights), quotas)


def access_as_written(history: History, limits: Limits) -> Iterator[Finding]:
    """I16: users, rights and quotas at the broker are those of accounts and of bootstrap, and no others."""
    access, snapshot = history.access, history.snapshot
    if access is None:
        return
    usual = _usual_quotas(snapshot, access)
    for user in snapshot.kafka_users:
        if user.state in ("active", "removed"):
            yield from _of_user(user, access, usual)
    known = {user.name for user in snapshot.kafka_users}
    provisioned = {
        tenant_user(tenant): tenant for tenant in snapshot.tenants if tenant_user(tenant) not in known
    }
    for name, tenant in sorted(provisioned.items()):
        yield from _rights(name, access, tenant_user_rights(name, tenant))
    for name in sorted({*access.users, *(right.user for right in access.rights)} - known - {*provisioned}):
        yield Finding(f"Kafka user {name}", "a password or rights", "none: accounts does not have it")


def _of_user(user: KafkaUser, access: Access, usual: ClientQuotas) -> Iterator[Finding]:
    is_active = user.state == "active"
    if (user.name in access.users) != is_active:
        actual, expected = ("no password", "one") if is_active else ("a password", "none")
        yield Finding(f"Kafka user {user.name}, password", actual, f"{expected}: it is {user.state}")
    rights = user_rights(user.name, reads=user.reads, writes=user.writes) if is_active else []
    yield from _rights(user.name, access, rights)
    quotas, expected_quotas = access.quotas.get(user.name, NONE), usual if is_active else NONE
    if quotas != expected_quotas:
        yield Finding(
            f"Kafka user {user.name}, quotas", str(quotas), f"{expected_quotas}: it is {user.state}"
        )


def _rights(name: str, access: Access, expected: Iterable[Right]) -> Iterator[Finding]:
    rights, allowed = {right for right in access.rights if right.user == name}, set(expected)
    if rights != allowed:
        actual = f"too many: {_listed(rights - allowed)}; missing: {_listed(allowed - rights)}"
        yield Finding(f"Kafka user {name}, rights", actual, "those that accounts has for it")


def _listed(rights: Iterable[Right]) -> str:
    return ", ".join(sorted(f"{each.operation} {each.resource} {each.name}" for each in rights)) or "none"


def _usual_quotas(snapshot: Snapshot, access: Access) -> ClientQuotas:
    """The settings of accounts are not known here, but they are the same for all."""
    active = [user.name for user in snapshot.kafka_users if user.state == "active"]
    quotas = Counter(access.quotas.get(name, NONE) for name in active)
    return quotas.most_common(1)[0][0] if quotas else NONE
