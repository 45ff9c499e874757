"""What `job.events` may tell is what the scheduler's table allows, no more and no less."""

from itertools import product

import pytest

from schemas.lifecycle import FIRST, NEXT, STATE_AFTER, TERMINAL
from schemas.topics import JOB_EVENTS
from services.scheduler import model
from services.scheduler.model import TRANSITIONS, JobState


def facts_of(state: JobState) -> list[type]:
    return [fact for fact, name in STATE_AFTER.items() if name == state]


def test_every_fact_of_the_topic_has_its_state():
    facts = {message for message in JOB_EVENTS.messages if message.type.startswith("Job")}
    assert set(NEXT) == set(STATE_AFTER) == facts
    assert set(STATE_AFTER.values()) == {state.value for state in JobState}
    assert STATE_AFTER[FIRST] == JobState.VALIDATING


@pytest.mark.parametrize("fact", NEXT, ids=lambda fact: fact.type)
def test_no_fact_follows_that_the_table_forbids(fact):
    state = JobState(STATE_AFTER[fact])
    again = {fact} if STATE_AFTER[fact] == JobState.STOPPING else set()
    following = {later: JobState(STATE_AFTER[later]) for later in NEXT[fact] - again}
    assert [later for later, target in following.items() if not TRANSITIONS.allows(state, target)] == []


@pytest.mark.parametrize(
    ("state", "target"), [(s, t) for s, t in product(JobState, JobState) if TRANSITIONS.allows(s, t)]
)
def test_every_move_of_the_table_can_be_told(state, target):
    for fact in facts_of(state):
        assert NEXT[fact] & set(facts_of(target)), f"after {fact.type} nothing tells of {target}"


def test_the_same_states_are_terminal():
    assert {state.value for state in model.TERMINAL} == TERMINAL
