"""One Kafka broker in KRaft mode: SCRAM, and nothing allowed by default."""

import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from pathlib import Path
from string import Template

from aiokafka.errors import KafkaError

from deploy.bootstrap import kafka as bootstrap
from deploy.bootstrap.site import KAFKA_SUPER_USER
from deploy.local import files
from deploy.local.binaries import Binaries
from deploy.local.errors import StackError
from deploy.local.network import accepts_connections
from deploy.local.site import site
from deploy.local.state import State
from deploy.local.supervisor import Program
from shared.files import write_whole

NAME = "kafka"
JVM_FLAGS = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
TLS = Template(
    """\
ssl.keystore.type=PEM
ssl.keystore.location=$certificate
ssl.truststore.type=PEM
ssl.truststore.location=$authority
"""
)
PROPERTIES = Template(Path(__file__).with_name("server.properties").read_text())


def prepare(state: State, parts: Binaries) -> None:
    """Write the configuration; format the data folder if it never was."""
    folder = files.folder(state.root / NAME)
    write_whole(folder / "server.properties", properties(state, folder))
    if (folder / "formatted").exists():
        return
    shutil.rmtree(folder / "data", ignore_errors=True)
    _format(state, parts, folder)
    (folder / "formatted").touch()


def properties(state: State, folder: Path) -> str:
    plain = PROPERTIES.substitute(
        broker_port=state.port("kafka"),
        controller_port=state.port("kafka-controller"),
        folder=folder,
        super_user=KAFKA_SUPER_USER,
        super_password=site(state).kafka_password(KAFKA_SUPER_USER),
        controller_password=site(state).kafka_password("controller"),
        protocol="SASL_SSL" if state.ca_file else "SASL_PLAINTEXT",
    )
    return plain + _tls(state)


def _tls(state: State) -> str:
    """Key store and trust store, for the broker is its own client too."""
    certificate = state.certificate(NAME)
    if certificate is None:
        return ""
    return TLS.substitute(certificate=certificate, authority=state.ca_file)


def _format(state: State, parts: Binaries, folder: Path) -> None:
    secret = folder / "scram.args"
    password = site(state).kafka_password(KAFKA_SUPER_USER)
    scram = f"SCRAM-SHA-512=[name={KAFKA_SUPER_USER},password={password}]"
    write_whole(secret, f"--add-scram\n{scram}\n")
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
    """Write an id as Kafka does; a leading dash would read as an option."""
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
        async with bootstrap.administrator(site(state)) as admin:
            cluster = await admin.describe_cluster()
    except (KafkaError, OSError):
        return False
    return bool(cluster["brokers"]) and cluster["controller_id"] >= 0


async def set_up(state: State, tenants: Iterable[str]) -> None:
    await bootstrap.set_up(site(state), tenants)
