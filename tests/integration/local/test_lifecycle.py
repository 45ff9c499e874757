"""Up, down, restart, death of a part, death of the supervisor: nothing is lost and nothing is left running."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest
from aiokafka import TopicPartition
from botocore.exceptions import ClientError

from deploy.bootstrap.rights import kafka_users, s3_users
from deploy.bootstrap.settings import variable
from deploy.local.errors import AlreadyRunning, StackError
from deploy.local.settings import REPOSITORY
from deploy.local.stack import Stack, end_leftovers
from schemas.topics import SERVICES
from shared.processes.ending import until
from shared.processes.identity import Identity, marked
from tests.integration.local.clients import consumer, producer, s3
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.stack

PARTS = ("kafka", "postgres", "s3")


@pytest.fixture(scope="module")
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A stack that these tests may kill."""
    stack = Stack(tmp_path_factory.mktemp("own"))
    await stack.up(())
    yield stack
    await stack.down()


@contextmanager
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own."""
    with subprocess.Popen(["env", "--default-signal=INT", "sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with sleeping() as process:
        yield process


@pytest.fixture
def runner() -> Iterator[subprocess.Popen[bytes]]:
    with sleeping() as process:
        yield process


def running(stack: Stack) -> list[Identity]:
    return list(marked(stack.state.mark))


async def write_everywhere(stack: Stack) -> None:
    connection = await asyncpg.connect(stack.postgres_dsn("scheduler"))
    await connection.execute("CREATE TABLE IF NOT EXISTS kept (word text); INSERT INTO kept VALUES ('kept')")
    await connection.close()
    async with producer(stack, "scheduler") as client:
        await client.send_and_wait("parked.scheduler", b"kept", partition=0)
    with s3(stack, "ingest") as client:
        client.put_object(Bucket=stack.s3_bucket, Key="datasets/kept/report.json", Body=b"kept")


async def read_everywhere(stack: Stack) -> list[str]:
    connection = await asyncpg.connect(stack.postgres_dsn("operator"))
    row = await connection.fetchval("SELECT word FROM scheduler.kept")
    await connection.close()
    partition = TopicPartition("parked.scheduler", 0)
    async with consumer(stack, "admin") as client:
        client.assign([partition])
        records = await client.getmany(partition, timeout_ms=PATIENCE_SECONDS * 1000)
    with s3(stack, "ingest") as client:
        body = client.get_object(Bucket=stack.s3_bucket, Key="datasets/kept/report.json")["Body"].read()
    return [row, records[partition][0].value.decode(), body.decode()]


async def test_down_leaves_no_process_and_up_finds_the_data_again(own: Stack):
    addresses = (own.kafka_bootstrap, own.postgres_dsn("scheduler"), own.s3_endpoint)
    await write_everywhere(own)
    assert len(running(own)) >= len(PARTS)

    await own.down()
    assert running(own) == []

    await own.up(())
    assert (own.kafka_bootstrap, own.postgres_dsn("scheduler"), own.s3_endpoint) == addresses
    assert await read_everywhere(own) == ["kept", "kept", "kept"]


@pytest.mark.parametrize("part", PARTS)
async def test_a_killed_part_comes_back(own: Stack, part: str):
    before = own.pid(part)
    await own.kill(part)
    await own.wait_healthy(part)
    assert own.pid(part) != before


async def test_what_dies_unsupervised_stays_down_until_started(own: Stack):
    own.supervise = False
    try:
        await own.kill("s3")
        with pytest.raises(
            StackError, match=r"s3 exited with code -9 before it was ready; its log .*s3\.log"
        ):
            await own.wait_healthy("s3")
    finally:
        own.supervise = True
    await own.start("s3")
    await own.wait_healthy("s3")


async def test_a_second_supervisor_is_refused(own: Stack):
    with pytest.raises(AlreadyRunning, match=rf"already running \(supervisor pid {os.getpid()}\)"):
        await Stack(own.state.root).up(())
    assert await own.wait_healthy("postgres") is None


async def test_secrets_are_readable_by_their_owner_only(own: Stack):
    private = ("env", "runner.env", "secrets.json", "kafka/server.properties", "s3/iam/users.json")
    modes = {name: (own.state.root / name).stat().st_mode & 0o777 for name in private}
    assert modes == dict.fromkeys(private, 0o600)


async def test_a_site_is_set_up_from_addresses_and_passwords_alone(own: Stack):
    """What the container `bootstrap` does, here on servers that the launcher has started."""
    secrets = [f"postgres:{role}" for role in ("postgres", "operator", *SERVICES)]
    secrets += [f"kafka:{user}" for user in ("broker", *kafka_users(own.tenants))]
    secrets += [f"s3:{user}" for user in ("root", *s3_users())]
    settings = {
        "KAFKA_BOOTSTRAP": own.kafka_bootstrap,
        "POSTGRES_ADDRESS": f"127.0.0.1:{own.state.port('postgres')}",
        "S3_ENDPOINT": own.s3_endpoint,
        "TENANT": "demo",
        **{variable(name): own.state.secret(name) for name in secrets},
        "SECRET_S3_TRACKER": "changed",
    }
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "deploy.bootstrap", cwd=REPOSITORY, env=os.environ | settings
    )
    assert await done.wait() == 0
    connection = await asyncpg.connect(own.postgres_dsn("operator"))
    applied = {
        service: await connection.fetchval(f"SELECT count(*) FROM {service}.migration")
        for service in SERVICES
    }
    await connection.close()
    assert all(applied.values()), applied
    assert s3_answer(own, "tracker", secret="changed") == "AccessDenied"  # known, and allowed nothing
    assert s3_answer(own, "tracker") == "SignatureDoesNotMatch"
    assert s3_answer(own, "ingest") == "allowed"


def s3_answer(stack: Stack, user: str, secret: str | None = None) -> str:
    with s3(stack, user, secret=secret) as client:
        try:
            client.list_objects_v2(Bucket=stack.s3_bucket, Prefix="datasets/")
        except ClientError as error:
            return error.response["Error"]["Code"]
    return "allowed"


async def test_two_stacks_live_side_by_side(own: Stack, stack: Stack):
    ports = [{stack_.state.port(part) for part in PARTS} for stack_ in (own, stack)]
    assert ports[0].isdisjoint(ports[1])
    stranger = own.postgres_dsn("scheduler").replace(
        f":{own.state.port('postgres')}/", f":{stack.state.port('postgres')}/"
    )
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(stranger)


async def test_a_port_taken_by_another_program_is_named(tmp_path: Path):
    stack = Stack(tmp_path, services=())
    with socket.socket() as other:
        other.bind(("127.0.0.1", stack.state.port("s3")))
        other.listen()
        with pytest.raises(StackError, match=r"port \d+ of s3 is taken by another program: stop .*") as error:
            await stack.up()
    assert error.value.exit_code == 3


async def test_down_ends_detached_processes_but_never_a_recycled_pid(tmp_path: Path, sleeper, runner):
    recycled = Identity.of(sleeper.pid)
    for folder, pid_file in (
        ("nodes/n1", str(Identity.of(runner.pid))),
        ("replicas/r1", f"{recycled.pid} {recycled.start - 1}"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "pid").write_text(pid_file)
    await end_leftovers(Stack(tmp_path).state)
    assert runner.poll() == -signal.SIGTERM
    assert sleeper.poll() is None


async def test_down_ends_what_a_dead_detached_process_left(tmp_path: Path):
    leader, orphan = leave_an_orphan()
    (tmp_path / "replicas/r1").mkdir(parents=True)
    (tmp_path / "replicas/r1/pid").write_text(str(leader))
    assert orphan.is_alive()
    await end_leftovers(Stack(tmp_path).state)
    assert not orphan.is_alive()


def leave_an_orphan() -> tuple[Identity, Identity]:
    """As a vLLM engine whose server was killed: no mark, no parent, only the session."""
    script = ["/bin/sh", "-c", "env -i sleep 600 & echo $!; wait"]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True, start_new_session=True) as shell:
        assert shell.stdout is not None
        orphan, leader = Identity.of(int(shell.stdout.readline())), Identity.of(shell.pid)
        shell.kill()
    assert leader is not None
    assert orphan is not None
    return leader, orphan


SUPERVISOR = """
import asyncio, sys
from contextlib import contextmanager
from pathlib import Path
from deploy.local.stack import Stack

async def main():
    await Stack(Path(sys.argv[1])).up(())
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def kill_a_supervisor(stack: Stack) -> list[Identity]:
    """Kill one of this state folder as soon as all is up; returns what ran below it."""
    command = [sys.executable, "-c", SUPERVISOR, str(stack.state.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "up\n"
        children = stack.state.left_behind()
        supervisor.kill()
    return children


async def test_a_killed_supervisor_leaves_no_orphan_and_the_next_start_works(own: Stack, sleeper):
    await own.down()
    children = await asyncio.to_thread(kill_a_supervisor, own)
    assert len(children) == len(PARTS)
    assert await until(lambda: running(own) == [], PATIENCE_SECONDS)

    unleashed = {"gateway": {"process": str(Identity.of(sleeper.pid)), "restarts": 0}}
    own.state.record("ready", unleashed)
    await own.up(())
    assert sleeper.poll() == -signal.SIGINT
