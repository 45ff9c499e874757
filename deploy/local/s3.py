"""One S3 server (versitygw over a folder): a key per service, a policy that holds each to its prefixes."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.local import files
from deploy.local.binaries import Binaries
from deploy.local.network import answers_ok
from deploy.local.rights import OPERATOR, RUNNER, bucket_policy
from deploy.local.state import LOOPBACK, State
from deploy.local.supervisor import Program
from schemas.layout import ACCESS
from schemas.topics import SERVICES

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

NAME = "s3"
ROOT = "root"
BUCKET = "retune"
REGION = "us-east-1"


@dataclass(frozen=True)
class Credentials:
    access_key: str
    secret_key: str


def endpoint(state: State) -> str:
    return f"http://{LOOPBACK}:{state.port(NAME)}"


def credentials(state: State, user: str) -> Credentials:
    return Credentials(user, state.secret(f"s3:{user}"))


def prepare(state: State, _: Binaries) -> None:
    folder = files.folder(state.root / NAME)
    files.folder(folder / "iam")
    files.folder(folder / "data")
    users = (*SERVICES, RUNNER, OPERATOR)
    files.write_json(
        folder / "iam/users.json", {"accessAccounts": {user: _account(state, user) for user in users}}
    )
    if not _keeps_attributes(folder):
        files.folder(folder / "sidecar")


def _account(state: State, user: str) -> dict[str, str | int]:
    """One entry of versitygw's own users file."""
    key = credentials(state, user)
    return {
        "access": key.access_key,
        "secret": key.secret_key,
        "role": "user",
        "userID": 0,
        "groupID": 0,
        "projectID": 0,
    }


def _keeps_attributes(folder: Path) -> bool:
    """The server keeps metadata in extended attributes, or beside the objects where the disk has none."""
    try:
        os.setxattr(folder, "user.retune", b"1")
    except OSError:
        return False
    return True


def program(state: State, parts: Binaries) -> Program:
    async def is_ready() -> bool:
        return await answers_ok(state.port(NAME), "/health")

    folder = state.root / NAME
    sidecar = ("--sidecar", str(folder / "sidecar")) if (folder / "sidecar").exists() else ()
    command = (
        str(parts.versitygw),
        "--quiet",
        "--port",
        f"{LOOPBACK}:{state.port(NAME)}",
        "--health",
        "/health",
    )
    store = ("posix", "--dir-perms", "0700", "--file-perms", "0600", *sidecar, str(folder / "data"))
    root = credentials(state, ROOT)
    return Program(
        NAME,
        (*command, "--iam-dir", str(folder / "iam"), *store),
        is_ready,
        env={"ROOT_ACCESS_KEY": root.access_key, "ROOT_SECRET_KEY": root.secret_key},
    )


async def provision(state: State, _: tuple[str, ...]) -> None:
    """The bucket and its policy."""
    await asyncio.to_thread(_set_up_bucket, state)


def _set_up_bucket(state: State) -> None:
    import boto3
    from botocore.config import Config

    root = credentials(state, ROOT)
    client = boto3.client(
        "s3",
        endpoint_url=endpoint(state),
        region_name=REGION,
        aws_access_key_id=root.access_key,
        aws_secret_access_key=root.secret_key,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    try:
        _create_bucket(client)
        client.put_bucket_policy(Bucket=BUCKET, Policy=bucket_policy(BUCKET, ACCESS))
    finally:
        client.close()


def _create_bucket(client: "S3Client") -> None:
    from botocore.exceptions import ClientError

    try:
        client.create_bucket(Bucket=BUCKET)
    except ClientError as error:
        if error.response["Error"]["Code"] not in {"BucketAlreadyExists", "BucketAlreadyOwnedByYou"}:
            raise
