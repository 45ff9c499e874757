"""With the proxy of the chaos tests between them, the store tells the truth of what S3 has."""

import hashlib

import pytest

from deploy.bootstrap.site import S3_ROOT
from deploy.local.stack import Stack
from shared.errors import CorruptObject, StorageUnavailable
from shared.storage.s3 import S3ObjectStore
from tests.chaos.s3_proxy import Fault, S3Proxy
from tests.chaos.scale import scaled, seed


@pytest.mark.stack
@pytest.mark.parametrize("fault", Fault)
async def test_whatever_ails_s3_what_was_written_is_whole_and_what_is_read_is_right(
    stack: Stack, fault: Fault
):
    """With one request in three ailing. A call may fail; one that does not has told the truth."""
    key = stack.s3_credentials(S3_ROOT)
    async with S3Proxy(
        stack.state.port("s3"), seed=seed(), rate=0.3, faults=(fault,), slow_seconds=0.1
    ) as proxy:
        objects = S3ObjectStore(
            f"http://127.0.0.1:{proxy.port}", key.access_key, key.secret_key, bucket=stack.s3_bucket
        )
        written = {
            f"chaos/{fault.name}/{number}": bytes([number]) * 10_000
            for number in range(scaled(10, 10, 1_000))
        }
        for name, data in written.items():
            await _persistently(objects.put_bytes, name, data)
        for name, data in written.items():
            sha256 = hashlib.sha256(data).hexdigest()
            assert await _persistently(lambda n=name, s=sha256: objects.get_bytes(n, sha256=s)) == data
        assert proxy.injected, "no request met a fault"


async def _persistently(call, *args):
    """As a task does, whose attempts the kernel makes."""
    while True:
        try:
            return await call(*args)
        except (StorageUnavailable, CorruptObject):
            continue
