"""retune events: read the topics as they are."""

import asyncio
import itertools
import json
from typing import Annotated, Any

import typer

from cli.commands.context import api, connection
from cli.commands.times import shown_time
from cli.output import show, show_table
from schemas.dataset import DatasetFact, DatasetReady
from schemas.evaluation import EvalProgressed
from schemas.job import JobSubmitted, QueuePositionChanged
from schemas.model import ModelExportProgressed
from schemas.topics import TOPICS
from schemas.training import TrainingPrepared
from shared.messaging.delivery import Delivery, Unreadable
from shared.messaging.reader import TopicReader

app = typer.Typer(
    add_completion=False,
    help="Events, straight from Kafka, or as the gateway keeps them.",
    no_args_is_help=True,
)

STORY_TOPICS = tuple(topic.name for topic in TOPICS if topic.is_event_stream)
SUMMARY_FIELDS = (
    *("attempt", "reason", "failure_class", "step", "last_step", "pool"),
    *("code", "message", "stage", "activity", "slot"),
)


@app.command()
def tail(
    topic: Annotated[
        list[str] | None, typer.Option(help="May be given several times; default: all events.")
    ] = None,
    from_start: Annotated[bool, typer.Option(help="Begin with the oldest record.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow new records until interrupted.")
    ] = False,
) -> None:
    """Print events as they come, or with --from-start all there are."""
    asyncio.run(_tail(_known(topic), from_start=from_start, follow=follow or not from_start))


@app.command("list")
def list_events(
    type_: Annotated[str | None, typer.Option("--type", help="Such as JobFailed.")] = None,
    subject: Annotated[
        str | None, typer.Option(help="Of what has this id: a job, a dataset, a sweep, …")
    ] = None,
    text: Annotated[str | None, typer.Option(help="What is somewhere in the event.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 50,
) -> None:
    """List your newest events, as the gateway keeps them for a while; newest first."""
    query = {"type": type_, "subject": subject, "q": text}
    newest = list(itertools.islice(api().pages("/events", **query), limit))
    rows = [
        (shown_time(each["created_at"]), each["id"], each["type"], each["subject"], each["message"])
        for each in newest
    ]
    show_table(newest, ("time", "id", "type", "subject", "what"), rows)


@app.command("show")
def show_event(event_id: str) -> None:
    """Show an event with its record as Kafka has it."""
    event = api().get(f"/events/{event_id}")
    show(event, json.dumps(event, indent=1, ensure_ascii=False))


@app.command()
def timeline(job_id: str) -> None:
    """Print every event of one job, over all topics, in order of time; progress is left out."""
    events = asyncio.run(_of_job(job_id))
    values = [_value(event) for event in events]
    rows = [
        (f"{event.envelope.time:%H:%M:%S.%f}"[:-3], event.topic.name, event.message.type, _summary(event))
        for event in events
    ]
    show_table(values, ("time", "topic", "event", ""), rows)


async def _tail(topics: tuple[str, ...], *, from_start: bool, follow: bool) -> None:
    async with TopicReader(connection().kafka, topics, from_end=not from_start) as reader:
        async for delivery in reader.follow() if follow else reader.to_the_end():
            _print(delivery)


async def _of_job(job_id: str) -> list[Delivery]:
    async with TopicReader(connection().kafka, STORY_TOPICS) as reader:
        deliveries = [event async for event in reader.to_the_end() if isinstance(event, Delivery)]
    messages = [event.message for event in deliveries]
    datasets = {
        dataset_id
        for each in messages
        if isinstance(each, JobSubmitted) and each.job_id == job_id
        for dataset_id in (each.dataset_id, *each.later_dataset_ids)
    }
    mine = [event for event in deliveries if _is_about(event.message, job_id, datasets)]
    return sorted(mine, key=lambda event: event.envelope.time)


def _is_about(message: Any, job_id: str, datasets: set[str]) -> bool:
    """Facts of the job, and those of the dataset that it names."""
    if isinstance(message, DatasetFact):
        return message.dataset_id in datasets
    is_progress = isinstance(message, EvalProgressed | ModelExportProgressed | QueuePositionChanged)
    return getattr(message, "job_id", None) == job_id and not is_progress


def _known(topics: list[str] | None) -> tuple[str, ...]:
    known = {topic.name for topic in TOPICS}
    for name in topics or ():
        if name not in known:
            raise typer.BadParameter(f"--topic: found {name!r}, expected one of {', '.join(sorted(known))}")
    return tuple(topics or STORY_TOPICS)


def _print(delivery: Delivery | Unreadable) -> None:
    if isinstance(delivery, Unreadable):
        text = f"{delivery.record.location} {delivery.reason}: {delivery.detail}"
        show(_unreadable_value(delivery), text)
    else:
        about = f"{delivery.topic.name} {delivery.envelope.key} {delivery.message.type}"
        show(_value(delivery), f"{delivery.envelope.time:%H:%M:%S} {about} {_summary(delivery)}")


def _value(event: Delivery) -> dict[str, Any]:
    envelope = event.envelope
    return {
        "topic": event.topic.name,
        "id": envelope.id,
        "type": envelope.ce_type,
        "time": envelope.time.isoformat(),
        "key": envelope.key,
        "sequence": envelope.sequence,
        "data": event.message.model_dump(mode="json"),
    }


def _unreadable_value(record: Unreadable) -> dict[str, Any]:
    return {
        "topic": record.record.topic,
        "partition": record.record.partition,
        "offset": record.record.offset,
        "id": record.event_id,
        "key": record.aggregate_id,
        "reason": record.reason,
        "detail": record.detail,
    }


def _summary(event: Delivery) -> str:
    """The fields that say most at a glance."""
    if isinstance(event.message, DatasetReady):
        return event.message.counts.summary
    if isinstance(event.message, TrainingPrepared):
        return event.message.preparation.summary
    data = event.message.model_dump(mode="json")
    parts = [f"{name}={data[name]}" for name in SUMMARY_FIELDS if data.get(name) not in (None, "")]
    if bundle := data.get("bundle"):
        parts.append(f"bundle={bundle['attempt']}/{bundle['step']}")
    if certificate := data.get("certificate"):
        parts.append(f"step={certificate['step']} exact={str(certificate['exact']).lower()}")
    if result := data.get("result"):
        parts.append(f"check={result['check']} outcome={result['outcome']}")
    return " ".join(parts)
