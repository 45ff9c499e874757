"""Logs of an attempt, as the runners put them in S3: numbered chunks per node."""

from schemas import layout
from services.gateway.job_responses import Log
from shared.storage.objects import ObjectStore

MAX_CHUNKS = 50


async def log_page(objects: ObjectStore, job_id: str, attempt: int, node: int, after: int) -> Log:
    prefix = layout.log(job_id, attempt, node, 0).rpartition("/")[0] + "/"
    heads = await objects.list_objects(prefix)
    numbered = sorted((int(head.key.rpartition("/")[2]), head.key) for head in heads)
    chunks = [(number, key) for number, key in numbered if number > after][:MAX_CHUNKS]
    texts = [(await objects.get_bytes(key)).decode("utf-8", "replace") for _, key in chunks]
    return Log(
        object="log",
        job_id=job_id,
        attempt=attempt,
        node=node,
        text="".join(texts),
        next=chunks[-1][0] if chunks else after,
    )
