"""What the node of an attempt asks at trainer_agent's doors, and what somebody else makes of it."""

from datetime import timedelta
from typing import Any

import httpx
from pydantic import BaseModel

from schemas import layout
from schemas.job import JobScheduled
from schemas.object_requests import SIGNATURE_HEADER
from services.provisioner.model import node_id
from shared.clock import utc_now
from shared.signatures import PrivateKey
from tests.node_keys import signer_of

STRANGER = PrivateKey("f" * 64)


async def ask_signed(
    http: httpx.AsyncClient,
    route: str,
    request: type[BaseModel],
    scheduled: JobScheduled,
    *,
    node: int = 0,
    signer: PrivateKey | None = None,
    at: timedelta = timedelta(0),
    alter: bytes = b"",
    **fields: Any,
) -> httpx.Response:
    """Send it as this node, signed with its key or another one, at another time, changed after that."""
    body = request(
        job_id=scheduled.job_id,
        attempt=scheduled.attempt,
        node_index=node,
        node_id=node_id(layout.attempt_name(scheduled.job_id, scheduled.attempt), node),
        time=utc_now() + at,
        **fields,
    )
    content = body.model_dump_json().encode()
    key = signer or signer_of(scheduled.job_id, scheduled.attempt, node=node)
    headers = {SIGNATURE_HEADER: key.signature_of(content)}
    return await http.post(route, content=content + alter, headers=headers)
