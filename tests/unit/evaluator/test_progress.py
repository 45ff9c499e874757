"""What people hear of a running gate: where it is, the items, an estimate; not too often."""

import asyncio

import pytest
from pydantic import ValidationError

from services.evaluator.decide.progress import LOADING, Meter, Progress, is_due
from services.evaluator.handlers.progress import publishing
from services.evaluator.scoring.order import Side
from services.evaluator.scoring.reports import REPORT, Loaded, PartProgressed, Report, Waiting
from tests.waiting import PATIENCE_SECONDS

ROWS = {
    ("benchmark:general", "candidate"): 100,
    ("safety:refusals", "candidate"): 50,
    ("benchmark:general", "base"): 100,
    ("safety:refusals", "base"): 50,
}


def report(part: str, done: int, total: int, side: Side | None = Side.CANDIDATE) -> PartProgressed:
    return PartProgressed(part=part, side=side, done=done, total=total)


def after(*reports: Report, every: float = 10.0, rows: dict = ROWS) -> Progress:
    """Reports that come every so many seconds after the model is loaded, which took an hour."""
    meter = Meter(rows, at=0.0).after(Loaded(device="cpu"), now=3600.0)
    for number, each in enumerate(reports, 1):
        meter = meter.after(each, now=3600.0 + every * number)
    return meter.progress


def test_nothing_is_known_while_the_model_is_loaded():
    assert after() == Progress(activity=LOADING)


def test_a_report_names_check_suite_and_side():
    progress = after(report("benchmark:general", 50, 100))
    assert progress.position == ("benchmark", "general", "candidate")
    assert (progress.items_done, progress.items_total) == (50, 100)
    assert after(report("holdout", 1, 9), rows={("holdout", "candidate"): 9}).position == (
        "holdout",
        "",
        "candidate",
    )


def test_what_is_left_is_estimated_by_the_pace_of_its_check():
    half = after(report("benchmark:general", 50, 100))
    assert half.seconds_left == pytest.approx(250 * 10 / 50)
    slow = after(report("benchmark:general", 100, 100), report("safety:refusals", 10, 50))
    assert slow.seconds_left == pytest.approx(90 * 1.0 + 100 * 0.1)


def test_a_part_that_counts_in_windows_is_done_by_its_share():
    assert after(report("benchmark:general", 500, 1000)).seconds_left == pytest.approx(50)


def test_a_report_of_both_sides_at_once_counts_for_both():
    one_pass = after(report("benchmark:general", 100, 100, side=None))
    assert one_pass.side is None
    assert one_pass.seconds_left == pytest.approx(100 * 10 / 200)


def test_at_the_end_nothing_is_left():
    reports = [report(part, rows, rows, Side(side)) for (part, side), rows in ROWS.items()]
    assert after(*reports).seconds_left == pytest.approx(0)


def test_the_time_of_a_check_is_that_of_all_its_reports():
    halves = after(report("benchmark:general", 25, 100), report("benchmark:general", 50, 100))
    assert halves.seconds_left == pytest.approx(250 * 20 / 50)


def test_a_side_that_is_not_scored_is_none():
    assert after(report("judge", 1, 2)).side is None


@pytest.mark.parametrize(("items", "total", "left"), [(7, 5, 200 * 10 / 100), (5, 0, None)])
def test_a_part_is_done_whole_at_most_and_unknown_without_a_total(items, total, left):
    assert after(report("benchmark:general", items, total)).seconds_left == left


@pytest.mark.parametrize(
    "odd",
    [
        Waiting(),
        report("judge", 0, 0, side=None),
        report("unheard-of:part", 1, 2),
        report("benchmark:general", 5, 0),
        report("benchmark:general", 7, 5),
        report("holdout", 1, 2),
    ],
)
def test_reports_that_fit_no_part_break_nothing(odd: Report):
    progress = after(odd, report("benchmark:general", 50, 100))
    assert (progress.items_done, progress.activity) == (50, "benchmark")
    left = after(odd).seconds_left
    assert left is None or left >= 0


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "progress"}',
        '{"event": "progress", "part": "holdout", "side": "both", "done": 1, "total": 2}',
        '{"event": "progress", "part": "holdout", "done": "x", "total": null}',
        '{"event": "unheard of"}',
    ],
)
def test_a_line_of_another_shape_is_no_report(line: str):
    with pytest.raises(ValidationError):
        REPORT.validate_json(line)


def test_an_event_is_due_at_once_in_another_place_and_else_every_few_seconds():
    published = Progress("benchmark", "general", "candidate", 10, 100, 9.0)
    on = Progress("benchmark", "general", "candidate", 20, 100, 8.0)
    assert is_due(None, published, seconds_since=0.0)
    assert not is_due(published, on, seconds_since=4.9)
    assert is_due(published, on, seconds_since=5.0)
    assert not is_due(published, published, seconds_since=60.0)
    assert is_due(published, Progress("benchmark", "general", "base"), seconds_since=0.0)


class TestPublishing:
    async def test_many_reports_of_one_place_are_one_event(self):
        published: list[Progress] = []

        async def publish(progress: Progress) -> None:
            published.append(progress)

        async with publishing(publish, ROWS) as publisher:
            for part in ("benchmark:general", "safety:refusals"):
                for done in range(50):
                    publisher.update(report(part, done, 50))
                    await asyncio.sleep(0)
        assert [each.activity for each in published] == ["benchmark", "safety"]

    async def test_a_publication_that_fails_or_hangs_holds_nobody_up(self):
        begun: list[Progress] = []

        async def hang_and_fail(progress: Progress) -> None:
            begun.append(progress)
            if progress.activity == "benchmark":
                raise OSError("Postgres is away")
            await asyncio.Event().wait()

        async with asyncio.timeout(PATIENCE_SECONDS), publishing(hang_and_fail, ROWS) as publisher:
            publisher.update(report("benchmark:general", 1, 50))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            publisher.update(report("safety:refusals", 1, 50))
            await asyncio.sleep(0)
            publisher.update(report("safety:refusals", 2, 50, side=Side.BASE))
            await asyncio.sleep(0)
        assert [each.activity for each in begun] == ["benchmark", "safety"]
