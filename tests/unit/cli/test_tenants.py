"""`retune tenants`: who may work, and with which keys."""

import json

from tests.unit.cli.commandline import lines, paged

TENANT = {"id": "acme", "tier": "premium", "active_keys": 2, "created_at": 60}
KEYS = [
    {"id": "key-2", "prefix": "sk-retune-abcd", "created_at": 120, "revoked_at": None},
    {"id": "key-1", "prefix": "sk-retune-efgh", "created_at": 60, "revoked_at": 180},
]


def test_tenants_are_listed_with_the_number_of_their_keys(retune):
    retune.answers["GET /admin/tenants"] = paged(TENANT)
    code, out, err = retune.run("tenants", "list")
    assert (code, err) == (0, "")
    assert lines(out) == ["name tier keys since", "acme premium 2 1970-01-01 00:01:00"]
    assert json.loads(retune.run("--json", "tenants", "list")[1]) == [TENANT]


def test_keys_are_listed_and_revoked_one_by_one(retune):
    retune.answers["GET /admin/tenants/acme/keys"] = paged(*KEYS)
    assert lines(retune.run("tenants", "keys", "acme")[1]) == [
        "id begins with made revoked",
        "key-2 sk-retune-abcd 1970-01-01 00:02:00",
        "key-1 sk-retune-efgh 1970-01-01 00:01:00 1970-01-01 00:03:00",
    ]
    retune.answers["POST /admin/tenants/acme/keys/key-2/revoke"] = KEYS[0] | {"revoked_at": 240}
    assert retune.run("tenants", "revoke-key", "acme", "key-2") == (0, "acme: key-2 revoked\n", "")
