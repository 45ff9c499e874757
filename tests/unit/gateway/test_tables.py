"""The statement that writes a row by its key, and the table of what events set."""

from schemas.handled import HANDLED
from services.gateway.handlers import CONSEQUENCES
from services.gateway.projections import PROJECTIONS
from services.gateway.tables import Table


class Statements:
    """A connection that keeps what it is asked to run."""

    def __init__(self) -> None:
        self.executed: list[tuple[object, ...]] = []

    async def execute(self, query: str, *values: object) -> None:
        self.executed.append((query, *values))


async def statement(table: Table, **row: object) -> tuple[object, ...]:
    conn = Statements()
    await table.save(conn, row)  # type: ignore[arg-type]
    (executed,) = conn.executed
    return executed


async def test_a_row_is_inserted_or_changed_but_for_its_key_and_what_is_set_once():
    table = Table("t", ("id",), once=("tenant",), merged={"b": "t.b || EXCLUDED.b"}, only_where="t.open")
    query, *values = await statement(table, id=1, tenant="x", a=2, b=(3, 4))
    assert query == (
        "INSERT INTO t (id, tenant, a, b) VALUES ($1, $2, $3, $4)"
        " ON CONFLICT (id) DO UPDATE SET a = EXCLUDED.a, b = t.b || EXCLUDED.b WHERE t.open"
    )
    assert values == [1, "x", 2, [3, 4]]


async def test_a_row_of_which_all_is_set_once_stays():
    query, *_ = await statement(Table("t", ("id",), once=("a",)), id=1, a=2)
    assert query == "INSERT INTO t (id, a) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING"


async def test_a_row_that_is_not_inserted_is_changed_where_it_is():
    query, *_ = await statement(Table("t", ("id", "n"), is_inserted=False), id=1, n=2, a=3)
    assert query == "UPDATE t SET a = $3 WHERE id = $1 AND n = $2 AND true"


def test_what_events_set_is_named_by_key():
    for event, projection in PROJECTIONS.items():
        table = projection.table
        assert {*table.key, *table.once} <= projection.sources.keys(), event
        assert {*table.merged} <= {name for each in PROJECTIONS.values() for name in each.sources}, table.name


def test_the_gateway_listens_to_every_event_of_the_table():
    handled = {each for types in HANDLED["gateway"].values() for each in types}
    assert {message.type for message in (*PROJECTIONS, *CONSEQUENCES)} <= handled
