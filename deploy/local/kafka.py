"""One Kafka broker in KRaft mode: SCRAM, nothing allowed by default, topics and rights from the contract."""

import hashlib
import secrets
import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from string import Template

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import KafkaError

from deploy.local import files
from deploy.local.binaries import Binaries
from deploy.local.kafka_requests import ScramUser, replace_rights, set_passwords
from deploy.local.network import accepts_connections
from deploy.local.problems import StackError
from deploy.local.rights import all_topics, kafka_rights, kafka_users
from deploy.local.state import LOOPBACK, State
from deploy.local.supervisor import Program
from schemas.topics import Topic

NAME = "kafka"
SUPER_USER = "broker"
JVM_FLAGS = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SCRAM_ITERATIONS = 4096
TOPIC_EXISTS = 36
DAY_MS = 24 * 3600 * 1000
PROPERTIES = Template(Path(__file__).with_name("server.properties").read_text())


def bootstrap(state: State) -> str:
    return f"{LOOPBACK}:{state.port('kafka')}"


def password(state: State, user: str) -> str:
    return state.secret(f"kafka:{user}")


def prepare(state: State, parts: Binaries) -> None:
    """Write the configuration; format the data folder if it never was."""
    folder = files.folder(state.root / NAME)
    files.write(folder / "server.properties", properties(state, folder))
    if (folder / "formatted").exists():
        return
    shutil.rmtree(folder / "data", ignore_errors=True)
    _format(state, parts, folder)
    (folder / "formatted").touch()


def properties(state: State, folder: Path) -> str:
    return PROPERTIES.substitute(
        broker_port=state.port("kafka"),
        controller_port=state.port("kafka-controller"),
        folder=folder,
        super_user=SUPER_USER,
        super_password=password(state, SUPER_USER),
        controller_password=password(state, "controller"),
    )


def _format(state: State, parts: Binaries, folder: Path) -> None:
    secret = folder / "scram.args"
    scram = f"SCRAM-SHA-512=[name={SUPER_USER},password={password(state, SUPER_USER)}]"
    files.write(secret, f"--add-scram\n{scram}\n")
    tool = [
        "kafka.tools.StorageTool",
        "format",
        "-t",
        cluster_id(uuid.uuid4()),
        "-c",
        str(folder / "server.properties"),
    ]
    done = subprocess.run([*_java(parts), *tool, f"@{secret}"], capture_output=True, text=True, check=False)
    secret.unlink()
    if done.returncode != 0:
        raise StackError(f"Kafka could not format {folder}: {(done.stdout + done.stderr).strip()[-500:]}")


def cluster_id(random: uuid.UUID) -> str:
    """As Kafka writes an id; a leading dash would read as an option."""
    return "A" + urlsafe_b64encode(random.bytes).decode().rstrip("=")[1:]


def _java(parts: Binaries) -> list[str]:
    archive = [f"-XX:AOTCache={parts.archive}"] if parts.archive else []
    return [str(parts.java), *archive, *JVM_FLAGS, "-cp", ":".join(map(str, parts.jars))]


def program(state: State, parts: Binaries) -> Program:
    async def is_ready() -> bool:
        return await accepts_connections(state.port("kafka")) and await _answers(state)

    configuration = str(state.root / NAME / "server.properties")
    return Program(NAME, (*_java(parts), "kafka.Kafka", configuration), is_ready)


async def _answers(state: State) -> bool:
    try:
        async with administrator(state) as admin:
            cluster = await admin.describe_cluster()
    except (KafkaError, OSError):
        return False
    return bool(cluster["brokers"]) and cluster["controller_id"] >= 0


@asynccontextmanager
async def administrator(state: State) -> AsyncIterator[AIOKafkaAdminClient]:
    """A client with the rights of the broker itself."""
    admin = AIOKafkaAdminClient(
        bootstrap_servers=bootstrap(state),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username=SUPER_USER,
        sasl_plain_password=password(state, SUPER_USER),
    )
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


async def provision(state: State, tenants: Iterable[str]) -> None:
    """Make users, topics and rights what the contract says; takes away what it no longer says."""
    tenants = tuple(tenants)
    users = [scram_user(user, password(state, user)) for user in kafka_users(tenants)]
    async with administrator(state) as admin:
        await set_passwords(admin, users)
        await _create_topics(admin, all_topics(tenants))
        await replace_rights(admin, kafka_rights(tenants))


def scram_user(name: str, secret: str) -> ScramUser:
    salt = secrets.token_bytes(24)
    salted = hashlib.pbkdf2_hmac("sha512", secret.encode(), salt, SCRAM_ITERATIONS)
    return ScramUser(name, SCRAM_ITERATIONS, salt, salted)


async def _create_topics(admin: AIOKafkaAdminClient, topics: tuple[Topic, ...]) -> None:
    wanted = [
        NewTopic(
            topic.name,
            topic.partitions,
            replication_factor=1,
            topic_configs={"retention.ms": str(topic.retention_days * DAY_MS)},
        )
        for topic in topics
    ]
    response = await admin.create_topics(wanted)
    existing = set()
    for name, code, *message in response.topic_errors:
        if code == TOPIC_EXISTS:
            existing.add(name)
        elif code != 0:
            raise StackError(f"Kafka did not create topic {name}: error {code} {message}")
    await _widen_topics(admin, [topic for topic in topics if topic.name in existing])


async def _widen_topics(admin: AIOKafkaAdminClient, topics: list[Topic]) -> None:
    """Partitions that the contract has gained since the state folder was made."""
    if not topics:
        return
    found = await admin.describe_topics([topic.name for topic in topics])
    counts = {topic["topic"]: len(topic["partitions"]) for topic in found}
    narrow = [topic for topic in topics if counts[topic.name] < topic.partitions]
    if narrow:
        await admin.create_partitions({topic.name: NewPartitions(topic.partitions) for topic in narrow})
