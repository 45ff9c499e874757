"""Every state of a job has its facts on `job.events`, and from each fact every move of its state can be reported."""

from itertools import product

from schemas.lifecycle import FIRST, NEXT, STATE_AFTER, JobState
from schemas.topics import JOB_EVENTS
from services.scheduler.model import TRANSITIONS


def facts_of(state: JobState) -> list[type]:
    return [fact for fact, name in STATE_AFTER.items() if name == state]


def test_every_fact_of_the_topic_has_its_state():
    facts = {message for message in JOB_EVENTS.messages if message.type.startswith("Job")}
    assert set(NEXT) == set(STATE_AFTER) == facts
    assert set(STATE_AFTER.values()) == {state.value for state in JobState}
    assert STATE_AFTER[FIRST] == JobState.VALIDATING


def test_every_move_of_the_table_has_a_fact():
    for state, target in product(JobState, JobState):
        if TRANSITIONS.allows(state, target):
            for fact in facts_of(state):
                assert NEXT[fact] & set(facts_of(target)), f"after {fact.type} nothing tells of {target}"
