"""The environment of each service, of the node runners, and of the person at the shell."""

import os
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path

from deploy.bootstrap import postgres
from deploy.bootstrap.rights import OPERATOR, RUNNER
from deploy.bootstrap.site import BUCKET
from deploy.local import files
from deploy.local.cache import cache_folder
from deploy.local.site import site
from deploy.local.state import LOOPBACK, State
from shared.files import write_whole
from shared.tls import CA_FILE, CERT_FILE

ASKED_BY_NODES = ("trainer_agent", "serving_controller", "evaluator")
HAVE_SCRATCH = ("ingest", "evaluator", "registry", "serving_controller", "gateway")
POOLS = Path(__file__).with_name("pools.toml")
NODES_AT_WORK = 2
"""So many train at a time without taking turns."""


def process_name(service: str, instance: int = 0) -> str:
    return service if instance == 0 else f"{service}-{instance}"


def nodes_listener(process: str) -> str:
    """Name of the port at which nodes ask this process."""
    return f"{process}-for-nodes"


def service_env(state: State, service: str, tenant: str, instance: int = 0) -> dict[str, str]:
    """The Settings of one service; `tenant` is the one that the gateway knows from the start."""
    prefix = service.upper()
    settings = {
        **_kafka(state, service),
        **_s3(state, service),
        "POSTGRES_DSN": site(state).postgres_dsn(service),
        "HTTP_PORT": str(state.port(process_name(service, instance))),
        "INSTANCE": str(instance),
        **_own(state, service, tenant),
    }
    if service in ASKED_BY_NODES:
        settings["NODES_PORT"] = str(state.port(nodes_listener(process_name(service, instance))))
    if service in HAVE_SCRATCH:
        settings["SCRATCH_DIR"] = str(files.folder(state.root / "scratch" / process_name(service, instance)))
    return {f"{prefix}_{name}": value for name, value in settings.items()} | _tls(
        state, process_name(service, instance)
    )


def _tls(state: State, server: str) -> dict[str, str]:
    certificate = state.certificate(server)
    if certificate is None:
        return {}
    return _authority(state) | {CERT_FILE: str(certificate)}


def _authority(state: State) -> dict[str, str]:
    return {CA_FILE: str(state.ca_file)} if state.ca_file else {}


def _kafka(state: State, user: str) -> dict[str, str]:
    return {
        "KAFKA_BOOTSTRAP": site(state).kafka_bootstrap,
        "KAFKA_USERNAME": user,
        "KAFKA_PASSWORD": site(state).kafka_password(user),
    }


def _s3(state: State, user: str) -> dict[str, str]:
    key = site(state).s3_credentials(user)
    return {
        "S3_ENDPOINT": site(state).s3_endpoint,
        "S3_ACCESS_KEY": key.access_key,
        "S3_SECRET_KEY": key.secret_key,
        "S3_BUCKET": BUCKET,
    }


def _own(state: State, service: str, tenant: str) -> dict[str, str]:
    """What only this service gets."""
    root = state.root
    own = {
        "gateway": {
            "ADMIN_KEY": state.secret("admin-key"),
            "BOOTSTRAP_TENANT": tenant,
            "BOOTSTRAP_API_KEY": api_key(state, tenant),
            "PASSWORD_SECRET": state.secret("kafka-users"),
            "WEBHOOK_SECRET": state.secret("webhooks"),
            "REPLICA_KEYS_DIR": str(root / "replica-keys"),
        },
        "evaluator": {
            "SCORING_THREADS": str(threads_of_a_process()),
            "GATES": "1",
            "REPLICA_KEYS_DIR": str(root / "replica-keys"),
        },
        "provisioner": {
            "POOLS_FILE": str(root / "pools.toml"),
            "NODES_DIR": str(root / "nodes"),
            "RUNNER_ENV_FILE": str(root / "runner.env"),
            "NODE_KEYS_SECRET": state.secret("node-keys"),
        },
        "serving_controller": {
            "REPLICAS_DIR": str(root / "replicas"),
            "KEYS_DIR": str(root / "replica-keys"),
            "CACHE_DIR": str(files.folder(cache_folder() / "vllm")),
        },
        "accounts": {"PASSWORD_SECRET": state.secret("kafka-users")},
        "auditor": {
            "SIGNING_KEY_FILE": str(root / "auditor" / "signing.pem"),
            "PUBLIC_KEY_FILE": str(_audit_key(state)),
        },
    }
    return own.get(service, {})


def _audit_key(state: State) -> Path:
    return state.root / "audit-public.pem"


def api_key(state: State, tenant: str) -> str:
    return state.secret(f"api-key:{tenant}")


def write_files(state: State, tenants: Iterable[str]) -> None:
    """`env` for the person's shell, `runner.env` for node runners, `pools.toml` where there is none yet."""
    first = next(iter(tenants))
    write_whole(state.root / "env", _lines(operator_env(state, first), "export "))
    write_whole(state.root / "runner.env", _lines(runner_env(state)))
    if not (state.root / "pools.toml").exists():
        shutil.copyfile(POOLS, state.root / "pools.toml")


def threads_of_a_process() -> int:
    """Training and scoring share a machine's cores, and threads that wait for a core make both crawl."""
    return max(1, (os.cpu_count() or 1) // NODES_AT_WORK)


def runner_env(state: State) -> dict[str, str]:
    threads = {"OMP_NUM_THREADS": str(threads_of_a_process())}
    urls = {
        f"{service.upper()}_URL": f"{state.scheme}://{LOOPBACK}:{state.port(nodes_listener(service))}"
        for service in ASKED_BY_NODES
    }
    settings = {**_kafka(state, RUNNER), **urls, **threads}
    return {f"RUNNER_{name}": value for name, value in settings.items()} | _authority(state)


def operator_env(state: State, tenant: str) -> dict[str, str]:
    settings = {
        "BASE_URL": f"{state.scheme}://{LOOPBACK}:{state.port('gateway')}/v1",
        "API_KEY": api_key(state, tenant),
        "ADMIN_KEY": state.secret("admin-key"),
        **_kafka(state, OPERATOR),
        "POSTGRES_DSN": site(state).postgres_dsn(postgres.OPERATOR),
        **_s3(state, OPERATOR),
        "AUDIT_PUBLIC_KEY_FILE": str(_audit_key(state)),
        "TENANT_KAFKA_USERNAME": f"tenant-{tenant}",
        "TENANT_KAFKA_PASSWORD": site(state).kafka_password(f"tenant-{tenant}"),
    }
    return {f"RETUNE_{name}": value for name, value in settings.items()} | _authority(state)


def _lines(settings: dict[str, str], before: str = "") -> str:
    return "".join(f"{before}{name}={shlex.quote(value)}\n" for name, value in settings.items())
