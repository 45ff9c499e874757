"""What the address of a list says: what is searched for, what it is sorted by, and after which row it continues."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar, cast
from urllib.parse import urlencode

from fastapi import Query, Request

from services.gateway.filters import ListFilter
from services.gateway.page import search
from services.gateway.page.views import Badge
from shared.errors import Refused

Text = Annotated[str, Query(max_length=500)]
OrderName = TypeVar("OrderName", bound=str)


@dataclass(frozen=True)
class Address(Generic[OrderName]):
    path: str
    q: str
    after: str | None
    sort: OrderName
    orders: Mapping[OrderName, str]
    """What people read of each order; the first is the usual one, which the address does not name."""

    @property
    def named(self) -> dict[str, str | None]:
        """Values by the names that they have in the address."""
        return {"q": self.q, "sort": self.sort, "after": self.after}

    def address(self, path: str = "", **changes: str | None) -> str:
        """Return it with these changes, and with another path where one is given."""
        values = {name: value for name, value in (self.named | changes).items() if value}
        if values.get("sort") == next(iter(self.orders)):
            del values["sort"]
        path = path or self.path
        return f"{path}?{urlencode(values)}" if values else path


@dataclass(frozen=True)
class Chip:
    """A group of states to filter by."""

    word: str
    address: str
    is_chosen: bool
    count: int | None = None
    """How many rows there are; None where they are not counted."""


def chips(
    listed: Address[OrderName], words: Iterable[str], counts: Mapping[str, int] | None = None
) -> list[Chip]:
    """Return one for all rows, whose count has the empty word, and one for each of these words."""
    return [
        Chip(
            word=word or "all",
            address=listed.address(q=search.with_status(listed.q, word), after=None),
            is_chosen=search.has_status(listed.q, word),
            count=counts[word] if counts else None,
        )
        for word in ("", *words)
    ]


@dataclass(frozen=True)
class Asked(Address[OrderName]):
    """Of a list that is searched by words and `status:`."""

    only: ListFilter
    statuses: tuple[str, ...]

    @property
    def chips(self) -> list[Chip]:
        return chips(self, self.statuses)

    @property
    def stream(self) -> str | None:
        """Where changes come from; None for a page of older rows, which stays as it was."""
        return None if self.after else self.address(f"{self.path}/stream")


def asked_by(statuses: search.Statuses, orders: Mapping[OrderName, str]) -> Callable[..., Asked[OrderName]]:
    """Return the dependency of a list and of its stream. It raises Refused for what cannot be asked."""

    def asked(request: Request, q: Text = "", sort: str = "", after: str | None = None) -> Asked[OrderName]:
        only, path = search.parse_status(q, statuses), request.url.path.removesuffix("/stream")
        order = order_named(sort, orders)
        return Asked(path, q.strip(), after or None, order, orders, only, tuple(statuses))

    return asked


def order_named(name: str, orders: Mapping[OrderName, str]) -> OrderName:
    """Return the order of this name, and the usual one where it is empty. Raises Refused."""
    if name and name not in orders:
        message = f"sort: found {name[:80]!r}, expected one of {', '.join(orders)}"
        raise Refused("invalid_value", message, param="sort")
    return cast("OrderName", name) if name else next(iter(orders))


def statuses(badges: Mapping[str, Badge]) -> dict[str, tuple[str, ...]]:
    """Return states by the words that people see."""
    return {badge.word: (state,) for state, badge in badges.items()}
