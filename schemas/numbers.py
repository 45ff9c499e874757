"""How texts for people write numbers, in messages and on the page. Pure."""

from decimal import Decimal

CENT = Decimal("0.01")
SMALL = 0.01


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shortest(value: float) -> str:
    """As people type it: the shorter of `0.0025` and `2e-4`, with all of its digits."""
    if not 0 < abs(value) < SMALL:
        return repr(value)
    exact = Decimal(repr(value)).normalize()
    return min(f"{exact:f}", f"{exact:e}", key=len)


def money(dollars: Decimal) -> str:
    """US dollars. What is more than nothing and less than a cent is no `$0.00`."""
    return "under $0.01" if 0 < dollars < CENT else f"${dollars.quantize(CENT):,}"
