"""A Kafka as Strimzi starts it: no user of SCRAM, and a listener that knows the broker's own user by PLAIN."""

import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka.errors import KafkaError

from deploy.bootstrap import kafka as bootstrap
from deploy.bootstrap.site import KAFKA_SUPER_USER, Site
from deploy.local import files, kafka
from deploy.local.binaries import binaries
from deploy.local.site import site
from deploy.local.state import State
from shared.messaging.administration import administrator
from tests.waiting import until

LOGIN = "org.apache.kafka.common.security"


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[tuple[Site, Site]]:
    """The same Kafka twice: at the listener of clients, and at the one that sets it up."""
    state = State(tmp_path / "state")
    state.prepare()
    broker = _start(state)
    clients = site(state)
    setup = replace(clients, kafka_bootstrap=f"127.0.0.1:{state.port('setup')}", kafka_mechanism="PLAIN")
    try:
        await until(lambda: _answers(setup), every=0.5)
        yield clients, setup
    finally:
        broker.kill()
        broker.wait()


def _start(state: State) -> "subprocess.Popen[bytes]":
    folder = files.folder(state.root / kafka.NAME)
    configuration = folder / "server.properties"
    configuration.write_text(_properties(state, folder))
    java = kafka.program(state, binaries()).command[:-2]
    tool = ("kafka.tools.StorageTool", "format", "-t", "A" * 22, "-c", str(configuration))
    subprocess.run([*java, *tool], check=True, capture_output=True)
    with (folder / "log").open("wb") as log:
        return subprocess.Popen([*java, "kafka.Kafka", str(configuration)], stdout=log, stderr=log)


def _properties(state: State, folder: Path) -> str:
    password = state.secret(f"kafka:{KAFKA_SUPER_USER}")
    own = f'username="{KAFKA_SUPER_USER}" password="{password}" user_{KAFKA_SUPER_USER}="{password}"'
    changed = {
        "listeners": f"BROKER://127.0.0.1:{state.port('kafka')},SETUP://127.0.0.1:{state.port('setup')},"
        f"CONTROLLER://127.0.0.1:{state.port('kafka-controller')}",
        "advertised.listeners": f"BROKER://127.0.0.1:{state.port('kafka')},SETUP://127.0.0.1:{state.port('setup')}",
        "listener.security.protocol.map": "BROKER:SASL_PLAINTEXT,SETUP:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "SETUP",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.broker.scram-sha-512.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
        "listener.name.setup.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.setup.plain.sasl.jaas.config": f"{LOGIN}.plain.PlainLoginModule required {own};",
    }
    lines = kafka.properties(state, folder).splitlines()
    kept = [line for line in lines if line.partition("=")[0] not in changed]
    return "\n".join((*kept, *(f"{name}={value}" for name, value in changed.items()), ""))


async def _answers(at: Site) -> bool:
    try:
        async with bootstrap.administrator(at) as admin:
            return bool((await admin.describe_cluster())["brokers"])
    except (KafkaError, OSError):
        return False


async def test_bootstrap_makes_all_users_there_and_they_log_in_as_clients(started):
    clients, setup = started
    await bootstrap.set_up(setup, ("demo",))
    async with administrator(
        clients.kafka_bootstrap, "scheduler", clients.kafka_password("scheduler")
    ) as admin:
        assert "job.events" in await admin.list_topics()
    await bootstrap.set_up(setup, ("demo",))


async def test_nobody_is_known_to_clients_before_it(started):
    clients, setup = started
    assert not await _answers(clients)
    assert not await _answers(replace(setup, secret=lambda name: "wrong"))


async def test_only_the_brokers_user_logs_in_there(started):
    _, setup = started
    await bootstrap.set_up(setup, ("demo",))
    with pytest.raises(KafkaError):
        async with administrator(
            setup.kafka_bootstrap, "scheduler", setup.kafka_password("scheduler"), mechanism="PLAIN"
        ):
            pass
