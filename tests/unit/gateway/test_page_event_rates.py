"""Events a minute as bars."""

from datetime import timedelta

from services.gateway.page.event_rates import BAR, HEIGHT, MINUTES, drawn
from tests.builders import NOON

MINUTE = timedelta(minutes=1)


def test_bars_are_of_the_last_hour_with_the_busiest_minute_on_top():
    counts = {NOON - 59 * MINUTE: 2, NOON - MINUTE: 8, NOON: 4, NOON - 60 * MINUTE: 100, NOON + MINUTE: 7}
    rate = drawn(counts, now=NOON + timedelta(seconds=30), is_whole=True)
    assert [(bar.x, bar.y, bar.height) for bar in rate.bars] == [
        (0, HEIGHT * 0.75, HEIGHT / 4),
        ((MINUTES - 2) * BAR, 0, HEIGHT),
        ((MINUTES - 1) * BAR, HEIGHT / 2, HEIGHT / 2),
    ]
    assert rate.bars[1].title == "11:59 UTC: 8 events"
    assert rate.words == "14 events of the last hour, at most 8 a minute"


def test_an_hour_without_events_and_one_with_more_than_are_counted_say_so():
    assert drawn({}, now=NOON, is_whole=True).words == "0 events of the last hour"
    assert drawn({NOON: 3}, now=NOON, is_whole=False).words == (
        "the newest 3 events of the last hour, at most 3 a minute"
    )
