"""What must hold in every life of a job, whatever fails and however the topics lag."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from schemas.job import JobEvaluating, JobScheduled, JobSucceeded
from schemas.lifecycle import TERMINAL
from tests.unit.scheduler.job_history import History
from tests.unit.scheduler.world import World, run

TERMINAL_EVENTS = {"JobSucceeded", "JobFailed", "JobCancelled"}
NUM_WORLDS = 50


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    """Each ran until all was said; one that does not come to rest fails here, with its seed."""
    return [run(seed) for seed in range(NUM_WORLDS)]


def histories(worlds: list[World]) -> Iterator[tuple[World, str, History]]:
    for world in worlds:
        yield from ((world, job_id, history) for job_id, history in world.histories.items())


def test_the_worlds_are_rich_enough_to_show_something(worlds):
    event_types = {name for _, _, history in histories(worlds) for name in history.types}
    assert event_types >= TERMINAL_EVENTS | {"JobStopping", "JobPaused", "JobRequeued", "JobEvaluating"}
    assert max(history.job.attempt for _, _, history in histories(worlds)) >= 4


def test_a_story_has_one_terminal_event_at_most_and_it_is_the_last(worlds):
    for world, _, history in histories(worlds):
        ends = [position for position, name in enumerate(history.types) if name in TERMINAL_EVENTS]
        expected = [len(history.types) - 1] if history.job.state in TERMINAL else []
        assert ends == expected, f"seed {world.seed}"


def test_the_attempt_number_rises_by_one_at_each_schedule_and_nowhere_else(worlds):
    for world, _, history in histories(worlds):
        numbers = [event.attempt for event in history.events if isinstance(event, JobScheduled)]
        assert numbers == list(range(1, history.job.attempt + 1)), f"seed {world.seed}"
        attempts = [event.attempt for event in history.events if hasattr(event, "attempt")]
        assert all(later - earlier in (0, 1) for earlier, later in pairwise(attempts)), f"seed {world.seed}"


def test_a_resume_point_and_an_artifact_are_verified_bundles(worlds):
    for world, job_id, history in histories(worlds):
        resumed = [
            event.resume for event in history.events if isinstance(event, JobScheduled) and event.resume
        ]
        trained = [event.bundle for event in history.events if isinstance(event, JobEvaluating)]
        assert {(job_id, bundle) for bundle in resumed + trained} <= world.verified, f"seed {world.seed}"
        assert resumed == sorted(resumed, key=lambda bundle: (bundle.attempt, bundle.step))


def test_nothing_is_promoted_without_the_registry(worlds):
    for world, job_id, history in histories(worlds):
        for end in (event for event in history.events if isinstance(event, JobSucceeded)):
            assert end.promoted <= (job_id in world.promoted), f"seed {world.seed}"
            assert end.deployed <= end.promoted, f"seed {world.seed}"
