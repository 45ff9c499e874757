"""What a service handles is declared by its handlers alone; topics, rights and documents follow."""

import pytest

from deploy.handled import PATH, built, handled, text_of
from schemas.base import CommandRefused
from schemas.handled import HANDLED
from schemas.job import JobQueued
from schemas.topics import (
    DATASET_EVENTS,
    JOB_EVENTS,
    LISTENS,
    OF_EVERY_TENANT,
    PARKED_COMMANDS,
    QUEUE_EVENTS,
    READERS,
    SERVICES,
    TOPICS,
    Topic,
)
from services.tracker import handlers as tracker
from shared.messaging.handlers import WrongHandlers
from shared.service import Service
from tests.handlers import ignore

OF_TENANTS = {"gateway": {OF_EVERY_TENANT}}
LISTENERS = [service for service in SERVICES if service not in READERS]


@pytest.fixture(scope="module")
def services() -> dict[str, Service]:
    return {service: built(service) for service in LISTENERS}


async def start(service: Service) -> None:
    async with service.running():
        pytest.fail("it started")


def test_what_is_written_is_what_the_services_handle():
    assert PATH.read_text() == text_of(handled()), "`make schemas` writes it"


@pytest.mark.parametrize("service", LISTENERS)
def test_a_service_has_a_handler_on_each_topic_that_it_listens_to(service: str, services: dict[str, Service]):
    handled = services[service].handled().keys()
    assert handled == {topic.name for topic in LISTENS[service]} | OF_TENANTS.get(service, set())


def test_all_but_readers_have_handlers():
    assert HANDLED.keys() == set(SERVICES) - set(READERS)


@pytest.mark.parametrize(
    "topic", [topic for topic in TOPICS if topic.is_commands], ids=lambda each: each.name
)
def test_each_command_has_one_service_that_carries_it_out(topic: Topic):
    for command in topic.messages:
        handling = [each for each in LISTENERS if command.type in HANDLED[each].get(topic.name, ())]
        assert handling == (LISTENERS if topic == PARKED_COMMANDS else handling[:1]), command.type
        assert handling, f"nobody carries out {command.type}"


def test_the_gateway_handles_every_event():
    for topic in TOPICS:
        if topic.is_event_stream:
            assert HANDLED["gateway"][topic.name] == tuple(message.type for message in topic.messages)


async def test_a_topic_without_a_handler_is_refused_at_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(LISTENS, "tracker", (*LISTENS["tracker"], DATASET_EVENTS))
    with pytest.raises(
        WrongHandlers, match=r"tracker: no handler for any type of dataset\.events; .*make schemas"
    ):
        await start(built("tracker"))


async def test_a_handler_of_another_topic_is_refused_at_start():
    service = built("tracker")
    service.on(QUEUE_EVENTS.messages[0], ignore)
    with pytest.raises(WrongHandlers, match=r"tracker: no right to read queue\.events; .*make schemas"):
        await start(service)


async def test_a_service_without_its_handlers_is_refused_at_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tracker, "register", lambda *_: None)
    service = built("tracker")
    with pytest.raises(WrongHandlers) as refusal:
        await start(service)
    assert all(name in str(refusal.value) for name in ("job.events", "node.events", "run.metrics"))


def test_a_type_that_many_topics_carry_is_handled_on_the_one_that_is_named():
    service = built("provisioner")
    with pytest.raises(LookupError, match=r"CommandRefused: found dataset\.events, .*name the topic"):
        service.on(CommandRefused, ignore)
    service.on(CommandRefused, ignore, topic=JOB_EVENTS)
    assert CommandRefused.type in service.handled()[JOB_EVENTS.name]


def test_a_topic_is_named_that_carries_the_type():
    with pytest.raises(LookupError, match=r"JobQueued: found dataset\.events, which does not carry it"):
        built("tracker").on(JobQueued, ignore, topic=DATASET_EVENTS)
