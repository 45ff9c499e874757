"""The picture of docs/proof/fleet.md: GPUs in use and GPUs waited for over the days, a line for each policy."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from bench.fleet.simulation import Sample
from bench.fleet.workload import DAY

WIDTH, LEFT, RIGHT = 900, 90, 20
HEIGHT, GAP, TOP = 220, 70, 60
COLOURS = ("#0b6e4f", "#b3541e", "#5b4b9a", "#1f77b4", "#777777")


@dataclass(frozen=True)
class Line:
    name: str
    days: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True)
class Panel:
    title: str
    lines: Sequence[Line]
    most: float


def picture(title: str, samples: Mapping[str, Sequence[Sample]], *, devices: int) -> str:
    """Return an SVG. samples: those of each policy's run."""
    in_use = [_line(name, each, [sample.booked for sample in each]) for name, each in samples.items()]
    waited_for = [
        _line(name, each, [sample.waiting_devices for sample in each]) for name, each in samples.items()
    ]
    most = max(max(line.values) for line in waited_for)
    panels = [
        Panel("GPUs in use", in_use, devices),
        Panel("GPUs that waiting jobs ask for", waited_for, most),
    ]
    height = TOP + len(panels) * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="16" font-weight="bold">{escape(title)}</text>',
        *_legend([*samples]),
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, TOP + 30 + number * (HEIGHT + GAP))
    return "\n".join([*parts, "</svg>", ""])


def _line(name: str, samples: Sequence[Sample], values: Sequence[float]) -> Line:
    """Of every second hour: more points are not seen."""
    every = max(1, len(samples) // 240)
    return Line(name, [sample.at / DAY for sample in samples[::every]], values[::every])


def _legend(names: Sequence[str]) -> Iterator[str]:
    x = float(LEFT)
    for name, colour in zip(names, COLOURS, strict=False):
        yield f'<rect x="{x:.0f}" y="38" width="22" height="4" fill="{colour}"/>'
        yield f'<text x="{x + 28:.0f}" y="45">{escape(name)}</text>'
        x += 60 + 7.2 * len(name)


def _panel(panel: Panel, top: float) -> Iterator[str]:
    last = max(line.days[-1] for line in panel.lines)
    bottom = top + HEIGHT

    def place(day: float, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * day / last
        return f"{x:.1f},{bottom - HEIGHT * value / (1.05 * panel.most):.1f}"

    yield f'<text x="{LEFT}" y="{top - 8:.0f}" font-weight="bold">{escape(panel.title)}</text>'
    for quarter in range(5):
        value = panel.most * quarter / 4
        start, end = place(0, value), place(last, value)
        y = float(start.partition(",")[2])
        yield f'<polyline points="{start} {end}" stroke="#dddddd" fill="none"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,.0f}</text>'
    for day in range(int(last) + 1):
        x = place(day, 0).partition(",")[0]
        yield f'<text x="{x}" y="{bottom + 18:.0f}" text-anchor="middle">day {day}</text>'
    for line, colour in zip(panel.lines, COLOURS, strict=False):
        points = " ".join(map(place, line.days, line.values))
        yield f'<polyline points="{points}" stroke="{colour}" stroke-width="1.6" fill="none"/>'
