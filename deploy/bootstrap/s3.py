"""A key for each user of the store, one bucket, and a policy that holds each key to its prefixes."""

import asyncio
from typing import TYPE_CHECKING

from deploy.bootstrap.rights import bucket_policy, s3_users
from deploy.bootstrap.s3_accounts import replace_accounts
from deploy.bootstrap.site import BUCKET, REGION, S3_ROOT, Site
from schemas.layout import ACCESS, FORMER_ACCESS

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


async def set_up(site: Site) -> None:
    await asyncio.to_thread(_set_up, site)


def _set_up(site: Site) -> None:
    accounts = [site.s3_credentials(user) for user in (*s3_users(), *site.former_s3_users)]
    access = ACCESS | {user: FORMER_ACCESS[user] for user in site.former_s3_users}
    replace_accounts(site.s3_endpoint, site.s3_credentials(S3_ROOT), accounts, ca_file=site.ca_file)
    client = _client(site)
    try:
        _create_bucket(client)
        client.put_bucket_policy(Bucket=BUCKET, Policy=bucket_policy(BUCKET, access))
    finally:
        client.close()


def _client(site: Site) -> "S3Client":
    import boto3
    from botocore.config import Config

    root = site.s3_credentials(S3_ROOT)
    client: S3Client = boto3.client(
        "s3",
        endpoint_url=site.s3_endpoint,
        region_name=REGION,
        verify=str(site.ca_file) if site.ca_file else None,
        aws_access_key_id=root.access_key,
        aws_secret_access_key=root.secret_key,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    return client


def _create_bucket(client: "S3Client") -> None:
    from botocore.exceptions import ClientError

    try:
        client.create_bucket(Bucket=BUCKET)
    except ClientError as error:
        if error.response["Error"]["Code"] not in {"BucketAlreadyExists", "BucketAlreadyOwnedByYou"}:
            raise
