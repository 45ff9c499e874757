"""Each node of each attempt has a key of its own, which follows from the deployment's secret."""

import pytest
from pydantic import SecretStr

from services.provisioner.node_keys import NodeKeys
from shared.signatures import PrivateKey

SECRET = SecretStr("s" * 40)


def test_a_provisioner_that_was_started_again_gives_the_same():
    before, after = NodeKeys(SECRET), NodeKeys(SecretStr("s" * 40))
    assert before.private("a-x-e1", 0) == after.private("a-x-e1", 0)
    assert before.public("a-x-e1", 0) == after.public("a-x-e1", 0)


def test_nodes_attempts_jobs_and_deployments_have_keys_of_their_own():
    keys = NodeKeys(SECRET)
    places = [("a-x-e1", 0), ("a-x-e1", 1), ("a-x-e2", 0), ("a-y-e1", 0), ("a-x-e1", 10), ("a-x-e11", 0)]
    private = [keys.private(*place) for place in places]
    private.append(NodeKeys(SecretStr("t" * 40)).private("a-x-e1", 0))
    assert len(set(private)) == len(private)
    assert len({PrivateKey(each).public_key for each in private}) == len(private)


def test_the_public_key_is_that_of_the_private_one():
    keys = NodeKeys(SECRET)
    assert keys.public("a-x-e1", 0) == PrivateKey(keys.private("a-x-e1", 0)).public_key
    assert keys.public("a-x-e1", 0) != keys.private("a-x-e1", 0)


@pytest.mark.parametrize("secret", ["", "s" * 31])
def test_a_secret_that_can_be_guessed_is_refused_and_not_shown(secret):
    with pytest.raises(ValueError, match=f"PROVISIONER_NODE_KEYS_SECRET: found {len(secret)} ") as refused:
        NodeKeys(SecretStr(secret))
    assert "sss" not in str(refused.value)
