"""What must hold in every life of a job, whatever fails and however the topics lag."""

from itertools import pairwise

import pytest

from schemas.job import JobEvaluating, JobScheduled, JobSucceeded
from services.scheduler.model import TERMINAL
from tests.unit.scheduler import world as simulation

TERMINAL_EVENTS = {"JobSucceeded", "JobFailed", "JobCancelled"}
SEEDS = range(60)


@pytest.fixture(scope="module", params=SEEDS)
def world(request):
    return simulation.run(request.param)


def test_a_story_has_one_terminal_event_at_most_and_it_is_the_last(world):
    for story in world.stories.values():
        ends = [position for position, name in enumerate(story.types) if name in TERMINAL_EVENTS]
        assert ends == ([len(story.types) - 1] if story.job.state in TERMINAL else [])


def test_the_attempt_number_rises_by_one_at_each_schedule_and_nowhere_else(world):
    for story in world.stories.values():
        numbers = [event.attempt for event in story.events if isinstance(event, JobScheduled)]
        assert numbers == list(range(1, story.job.attempt + 1))
        attempts = [event.attempt for event in story.events if hasattr(event, "attempt")]
        assert all(later - earlier in (0, 1) for earlier, later in pairwise(attempts))


def test_a_resume_point_and_an_artefact_are_verified_bundles(world):
    for job_id, story in world.stories.items():
        resumed = [event.resume for event in story.events if isinstance(event, JobScheduled) and event.resume]
        trained = [event.bundle for event in story.events if isinstance(event, JobEvaluating)]
        assert {(job_id, bundle) for bundle in resumed + trained} <= world.verified
        assert resumed == sorted(resumed, key=lambda bundle: (bundle.attempt, bundle.step))


def test_nothing_is_promoted_without_the_registry(world):
    for job_id, story in world.stories.items():
        for end in (event for event in story.events if isinstance(event, JobSucceeded)):
            assert end.promoted <= (job_id in world.promoted)
            assert end.deployed <= end.promoted
