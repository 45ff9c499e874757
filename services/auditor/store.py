"""The auditor's SQL."""

from collections.abc import Iterable, Sequence

from schemas.audit import PartitionRead
from services.auditor.decide import Last
from shared.audit.chain import Chain
from shared.errors import StaleWrite
from shared.partition import Partition
from shared.postgres.database import Connection
from shared.postgres.rows import Columns, read

CHAIN = Columns(
    "topic=topic_partition.topic, partition=topic_partition.partition, start_offset, next_offset, link,"
    " oldest_ms, newest_ms"
)
BEGUN = Columns(
    "topic=topic_partition.topic, partition=topic_partition.partition, start_offset, next_offset, link"
)
CHAINS = f"SELECT {CHAIN.selected} FROM chain"
LOCK_CHAINS = f"{CHAINS} ORDER BY topic, partition FOR UPDATE"
BEGIN_CHAIN = f"""
    INSERT INTO chain ({BEGUN.names}) VALUES ({BEGUN.parameters()})
    ON CONFLICT (topic, partition) DO UPDATE
       SET start_offset = $3, next_offset = $4, link = $5, oldest_ms = NULL, newest_ms = NULL"""
ADVANCE = """
    UPDATE chain SET next_offset = $4, link = $5,
                     oldest_ms = least(oldest_ms, $6), newest_ms = greatest(newest_ms, $7)
     WHERE topic = $1 AND partition = $2 AND next_offset = $3 RETURNING true"""
MOVED = "SELECT topic, partition FROM chain WHERE signed_link IS DISTINCT FROM link"
MARK_SIGNED = """
    UPDATE chain SET signed_link = link, oldest_ms = NULL, newest_ms = NULL
      FROM unnest($1::text[], $2::int[]) AS named (topic, partition)
     WHERE (chain.topic, chain.partition) = (named.topic, named.partition) AND signed_link IS DISTINCT FROM link"""
FORGET_CHAINS = "DELETE FROM chain"

LAST_STATEMENT = "SELECT number, sha256 FROM statement ORDER BY number DESC LIMIT 1"
ADD_STATEMENT = "INSERT INTO statement (number, sha256, document, put_at) VALUES ($1, $2, $3, NULL)"
NOT_PUT = "SELECT number, document FROM statement WHERE put_at IS NULL ORDER BY number"
MARK_PUT = "UPDATE statement SET put_at = clock_timestamp() WHERE number = $1"
FORGET_ALL_STATEMENTS = "DELETE FROM statement"
FORGET_STATEMENTS = "DELETE FROM statement WHERE number < $1"


async def get_chains(conn: Connection) -> dict[Partition, Chain]:
    chains = [read(Chain, row) for row in await conn.fetch(CHAINS)]
    return {chain.topic_partition: chain for chain in chains}


async def lock_chains(conn: Connection) -> list[Chain]:
    """Return all chains, locked: nobody reads on until the end of the transaction."""
    return [read(Chain, row) for row in await conn.fetch(LOCK_CHAINS)]


async def begin_chains(conn: Connection, chains: Iterable[Chain]) -> None:
    await conn.executemany(BEGIN_CHAIN, [BEGUN.values(chain) for chain in chains])


async def advance(conn: Connection, before: Chain, after: Chain) -> None:
    """Save how far a chain was read. Raises StaleWrite where another process has read on meanwhile."""
    moved = await conn.fetchval(
        ADVANCE,
        *after.topic_partition,
        before.next_offset,
        after.next_offset,
        after.link,
        after.oldest_ms,
        after.newest_ms,
    )
    if not moved:
        name = f"{after.topic_partition.topic}/{after.topic_partition.partition}"
        raise StaleWrite(f"{name} was read on from {before.next_offset} by another process")


async def moved_topic_partitions(conn: Connection) -> set[Partition]:
    """Return the partitions whose chains are not where the last statement left them."""
    return {Partition(**row) for row in await conn.fetch(MOVED)}


async def mark_signed(conn: Connection, named: Sequence[PartitionRead]) -> None:
    """Record that these chains are as the statement says; the next statement collects times from here on.

    A chain that began meanwhile is in no statement yet.
    """
    await conn.execute(MARK_SIGNED, [each.topic for each in named], [each.partition for each in named])


async def replace_chains(conn: Connection, chains: Iterable[Chain]) -> None:
    await conn.execute(FORGET_CHAINS)
    await begin_chains(conn, chains)


async def last_statement(conn: Connection) -> Last:
    row = await conn.fetchrow(LAST_STATEMENT)
    return read(Last, row) if row else Last()


async def add_statement(conn: Connection, last: Last, document: bytes) -> None:
    await conn.execute(ADD_STATEMENT, last.number, last.sha256, document)


async def statements_to_put(conn: Connection) -> list[tuple[int, bytes]]:
    return [(row["number"], row["document"]) for row in await conn.fetch(NOT_PUT)]


async def mark_put(conn: Connection, number: int) -> None:
    """Record that S3 has the statement. Those before it are in S3 as well, and are deleted here."""
    await conn.execute(MARK_PUT, number)
    await conn.execute(FORGET_STATEMENTS, number)


async def replace_statements(conn: Connection, last: Last, document: bytes) -> None:
    """Replace all statements by one that is in S3."""
    await conn.execute(FORGET_ALL_STATEMENTS)
    await add_statement(conn, last, document)
    await conn.execute(MARK_PUT, last.number)
