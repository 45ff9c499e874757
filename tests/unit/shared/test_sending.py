import gc

import pytest

from schemas.node import PreemptNode
from shared.messaging.kafka import KafkaFailed
from shared.messaging.login import Login
from shared.messaging.reader import send

NOBODY = "127.0.0.1:9"


async def test_a_producer_that_cannot_start_is_closed():
    with pytest.raises(KafkaFailed):
        await send(
            Login(NOBODY, "admin", "secret"), PreemptNode(node_id="n", notice_seconds=0), writer="admin"
        )
    gc.collect()  # an open one would tell now, which fails a test
