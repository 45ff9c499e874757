"""A stack that speaks TLS: who verifies it gets in everywhere, and plain text or another authority nowhere."""

import asyncio
import json
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import httpx
import pytest
from aiokafka.errors import KafkaConnectionError

from cli.api import Api
from deploy.bootstrap.site import Site
from deploy.local import certificates
from deploy.local.errors import MissingPart
from deploy.local.network import answers_ok
from deploy.local.site import site
from deploy.local.stack import Stack
from deploy.local.state import LOOPBACK
from deploy.local.status import survey
from ops.clients import object_store, postgres
from ops.connection import find_connection
from ops.errors import Unreachable
from schemas.node import PreemptNode
from schemas.topics import topic_of
from services.gateway.page.sessions import COOKIE
from shared.clock import utc_now
from shared.env_file import read_env_file
from shared.errors import StorageUnavailable
from shared.messaging.administration import administrator
from shared.messaging.delivery import Delivery
from shared.messaging.partitions import PartitionReader
from shared.messaging.reader import TopicReader, send
from shared.storage.s3 import S3ObjectStore
from shared.tls import CA_FILE, client_context

pytestmark = pytest.mark.stack

PORTS = ("kafka", "kafka-controller", "s3", "gateway", "accounts")
"""All that listen but Postgres, which begins in plain text by its protocol."""
HELD_MS = 20_000
"""How long a broker keeps a fetch open for which it has nothing."""


@pytest.fixture(scope="module")
async def secured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("tls"), tls=True)
    try:
        await stack.up(("gateway", "accounts"))
    except MissingPart as missing:
        pytest.skip(str(missing))
    yield stack
    await stack.down()


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority that nobody on the stack has a certificate of."""
    folder = tmp_path_factory.mktemp("stranger")
    certificates.renew_authority(folder, now=utc_now())
    return folder / certificates.AUTHORITY


@pytest.fixture(params=["plain text", "another authority"])
def outsider(request: pytest.FixtureRequest, secured: Stack, stranger: Path) -> Site:
    """The site with all its passwords, and without the one file."""
    known = site(secured.state)
    if request.param == "another authority":
        return replace(known, ca_file=stranger)
    return replace(known, ca_file=None, s3_endpoint=known.s3_endpoint.replace("https:", "http:"))


async def test_the_whole_stack_is_healthy(secured):
    rows, is_healthy = await survey(secured.state)
    assert is_healthy, "\n".join(rows)


@pytest.mark.parametrize("name", PORTS)
async def test_a_server_is_verified_at_every_port(secured, name):
    context = client_context(secured.state.ca_file)
    _, writer = await asyncio.open_connection(LOOPBACK, secured.state.port(name), ssl=context)
    assert writer.get_extra_info("cipher")[1] == "TLSv1.3"
    writer.close()


@pytest.mark.parametrize("name", PORTS)
async def test_no_port_is_verified_by_another_authority(secured, stranger, name):
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection(LOOPBACK, secured.state.port(name), ssl=client_context(stranger))


@pytest.mark.parametrize("name", ["gateway", "accounts", "s3"])
async def test_no_request_is_answered_in_plain_text(secured, name):
    assert not await answers_ok(secured.state.port(name), "/healthz")


async def test_kafka_lets_nobody_in_without(outsider):
    with pytest.raises(KafkaConnectionError):
        async with administrator(
            outsider.kafka_bootstrap, "admin", outsider.kafka_password("admin"), ca_file=outsider.ca_file
        ):
            pass


async def test_postgres_lets_nobody_in_without(outsider):
    context = client_context(outsider.ca_file) or False
    refusals = (asyncpg.InvalidAuthorizationSpecificationError, ssl.SSLCertVerificationError)
    with pytest.raises(refusals, match=r"no encryption|unable to get local issuer|certificate verify failed"):
        await asyncpg.connect(outsider.postgres_dsn("operator"), ssl=context)


async def test_the_object_store_lets_nobody_in_without(secured, outsider):
    key = outsider.s3_credentials("root")
    store = S3ObjectStore(
        outsider.s3_endpoint,
        key.access_key,
        key.secret_key,
        bucket=secured.s3_bucket,
        ca_file=outsider.ca_file,
    )
    refusal = f"{CA_FILE} names who is trusted" if outsider.ca_file else "Connection was closed"
    with pytest.raises(StorageUnavailable, match=refusal):
        await store.list_objects("")


async def test_the_gateway_keeps_what_it_is_sent_over_tls(secured):
    """Through the gateway to S3 and Postgres, and out of both."""
    env = secured.operator_env()
    headers = {"authorization": f"Bearer {env['RETUNE_API_KEY']}"}
    async with httpx.AsyncClient(
        base_url=env["RETUNE_BASE_URL"], headers=headers, verify=client_context(secured.state.ca_file)
    ) as client:
        row = json.dumps({"messages": [{"role": "user", "content": "a"}]}).encode()
        sent = await client.post("/files", files={"file": ("rows.jsonl", row)}, data={"purpose": "fine-tune"})
        assert sent.status_code == httpx.codes.OK, sent.text
        assert (await client.get(f"/files/{sent.json()['id']}/content")).content == row
    assert sent.headers["strict-transport-security"] == "max-age=31536000"


async def test_a_browser_keeps_the_session_for_tls_alone(secured):
    key = secured.operator_env()["RETUNE_API_KEY"]
    async with httpx.AsyncClient(verify=client_context(secured.state.ca_file)) as client:
        answer = await client.post(secured.url("gateway", "/login"), data={"key": key, "api_key": key})
    cookies = [value for value in answer.headers.get_list("set-cookie") if value.startswith(COOKIE)]
    assert cookies, answer.text[:500]
    assert all("; Secure" in value for value in cookies)


async def test_operators_tools_reach_everything(secured):
    connection = find_connection(secured.operator_env())
    async with postgres(connection, application="test") as database:
        assert await database.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    assert await object_store(connection.require_bucket()).list_objects("blobs/")
    command = PreemptNode(node_id="none", notice_seconds=1.0)
    event_id = await send(connection.kafka, command, writer="admin")
    async with TopicReader(connection.kafka, [topic_of(PreemptNode, writer="admin").name]) as reader:
        assert event_id in {
            each.envelope.id async for each in reader.to_the_end() if isinstance(each, Delivery)
        }


def test_the_command_line_verifies_the_gateway(secured):
    command = [sys.executable, "-m", "cli.app", "--json", "jobs", "list"]
    env = os.environ | secured.operator_env()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout or "null")) == (0, []), done.stderr


def test_a_tool_says_which_setting_is_wrong(secured, stranger, tmp_path):
    env = secured.operator_env()
    for changed, message in (
        ({CA_FILE: str(tmp_path / "none")}, f"{CA_FILE}: found no file"),
        (
            {"RETUNE_BASE_URL": "http://127.0.0.1/v1"},
            "RETUNE_BASE_URL: found http://127.0.0.1/v1, expected https",
        ),
        ({"RETUNE_S3_ENDPOINT": "http://s3"}, "RETUNE_S3_ENDPOINT: found http://s3, expected https"),
    ):
        with pytest.raises(Unreachable, match=message):
            find_connection(env | changed)
    for path in ("", str(stranger)):
        with pytest.raises(Unreachable, match=f"found {CA_FILE}={path}, expected the file of its authority"):
            Api(find_connection(env | {CA_FILE: path})).get("/fine_tuning/jobs")


def test_runners_get_the_authority_and_no_key(secured):
    runner = read_env_file(secured.state.root / "runner.env")
    assert runner[CA_FILE] == str(secured.state.ca_file)
    assert runner["RUNNER_TRAINER_AGENT_URL"].startswith("https://")
    assert not {"RETUNE_CERT_FILE", "RETUNE_KEY_FILE"} & runner.keys()


async def test_a_client_ends_without_waiting_for_a_broker_that_holds_its_fetch(secured):
    login = find_connection(secured.operator_env()).kafka
    reader = PartitionReader(login, idle_ms=HELD_MS)
    await reader.open()
    partitions = await reader.partitions("agent.directives".__eq__)
    reader.assign(dict.fromkeys(partitions, 0))
    assert await reader.fetch() == []
    async with asyncio.timeout(HELD_MS / 2000):
        await reader.close()


def test_a_state_folder_that_spoke_tls_goes_on_doing_so(secured):
    again = Stack(secured.state.root)
    assert again.url("gateway").startswith("https://")
    assert again.service_env("tracker")[CA_FILE] == str(secured.state.ca_file)
