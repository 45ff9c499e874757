"""The lineage of a model version as a picture: what it was made of, what serves it, what was started from it.

Pure: where boxes and lines are, to be drawn by a template. What comes of something is to the right of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.gateway.model import Job, ModelVersion, Route
from services.gateway.page.views import ROUTES, STATES, Tone, model_view

BOX_WIDTH, BOX_HEIGHT = 216, 50
COLUMN_GAP, ROW_GAP = 48, 14
NAME_CHARACTERS = 25
"""Characters of a name that fit a box."""


@dataclass(frozen=True)
class Node:
    kind: str
    name: str
    state: str = ""
    tone: Tone = "idle"
    link: str = ""
    x: int = 0
    y: int = 0
    width: int = BOX_WIDTH
    height: int = BOX_HEIGHT

    @property
    def shown_name(self) -> str:
        """The name cut to its box in the middle: versions of one base differ at their ends."""
        if len(self.name) <= NAME_CHARACTERS:
            return self.name
        half = NAME_CHARACTERS // 2
        return f"{self.name[: NAME_CHARACTERS - half - 1]}…{self.name[-half:]}"


@dataclass(frozen=True)
class Lineage:
    nodes: tuple[Node, ...]
    lines: tuple[str, ...]
    """Paths, each from one box to another."""
    width: int
    height: int
    words: str
    num_left_out: int


def drawn(
    row: ModelVersion, job: Job | None, routes: Sequence[Route], children: Sequence[Job], *, at_most: int
) -> Lineage:
    """Draw what is known of the version; `at_most` of the jobs that were started from it."""
    columns = (
        _sources(row, job),
        (_job_node("job", job) if job else Node("job", row.job_id),),
        (_version(row),),
        (*map(_slot, routes), *(_job_node("started from it", child) for child in children[:at_most])),
    )
    height = max(len(column) for column in columns) * (BOX_HEIGHT + ROW_GAP) - ROW_GAP
    placed = [_placed(column, number, height) for number, column in enumerate(columns)]
    sources, (trained_by,), (version,), uses = placed
    lines = (
        *(_line(source, trained_by) for source in sources),
        _line(trained_by, version),
        *(_line(version, use) for use in uses),
    )
    num_columns = len(columns) if uses else len(columns) - 1
    return Lineage(
        nodes=(*sources, trained_by, version, *uses),
        lines=lines,
        width=num_columns * (BOX_WIDTH + COLUMN_GAP) - COLUMN_GAP,
        height=height,
        words=f"made of {len(sources)}, used by {len(uses)}",
        num_left_out=max(0, len(children) - at_most),
    )


def _sources(row: ModelVersion, job: Job | None) -> tuple[Node, ...]:
    dataset_id = job.dataset_id if job else None
    sources = [
        Node("base model", row.base_model, link="/models"),
        Node(
            "dataset version", row.dataset_version[:16], link=f"/datasets/{dataset_id}" if dataset_id else ""
        ),
    ]
    if (start := row.detail.started_from) is not None:
        sources.append(Node("started from", start.name, link=f"/jobs/{start.job_id}"))
    return tuple(sources)


def _job_node(kind: str, job: Job) -> Node:
    badge = STATES[job.state]
    return Node(kind, job.fine_tuned_model or job.job_id, badge.word, badge.tone, f"/jobs/{job.job_id}")


def _version(row: ModelVersion) -> Node:
    badge = model_view(row).badge
    return Node("this version", row.full_name, badge.word, badge.tone)


def _slot(route: Route) -> Node:
    badge = ROUTES.get(route.state)
    state, tone = (badge.word, badge.tone) if badge else (route.state, "idle")
    return Node("served as", route.slot, state, tone, "/deployments")


def _placed(column: Sequence[Node], number: int, height: int) -> tuple[Node, ...]:
    """Place the boxes of a column below each other, in the middle of the picture's height."""
    own = len(column) * (BOX_HEIGHT + ROW_GAP) - ROW_GAP
    x, top = number * (BOX_WIDTH + COLUMN_GAP), (height - own) // 2
    return tuple(
        replace(node, x=x, y=top + place * (BOX_HEIGHT + ROW_GAP)) for place, node in enumerate(column)
    )


def _line(source: Node, target: Node) -> str:
    begin_x, begin_y = source.x + source.width, source.y + source.height // 2
    end_x, end_y = target.x, target.y + target.height // 2
    middle = (begin_x + end_x) // 2
    return f"M{begin_x} {begin_y} C{middle} {begin_y} {middle} {end_y} {end_x} {end_y}"
