"""`retune events list` and `show`: what the gateway keeps."""

from tests.unit.cli.commandline import CommandLine, lines, paged

EVENT = {
    "id": "event-7", "object": "event", "created_at": 1_800_000_000, "type": "JobFailed", "subject": "ftjob-1",
    "level": "error", "message": "oom: out of memory", "topic": "job.events",
}  # fmt: skip


def test_the_newest_are_listed_by_what_is_asked(retune: CommandLine):
    retune.answers["GET /events"] = paged(EVENT, EVENT | {"id": "event-6"})
    code, out, _ = retune.run(
        "events", "list", "--type", "JobFailed", "--subject", "ftjob-1", "--text", "memory", "--limit", "1"
    )
    (_, row) = lines(out)
    assert (code, row.endswith("event-7 JobFailed ftjob-1 oom: out of memory")) == (0, True)
    asked = retune.requests[0].url.params
    assert (asked["type"], asked["subject"], asked["q"]) == ("JobFailed", "ftjob-1", "memory")


def test_one_is_shown_with_its_record(retune: CommandLine):
    retune.answers["GET /events/event-7"] = EVENT | {"payload": '{"a": 1}'}
    code, out, _ = retune.run("events", "show", "event-7")
    assert (code, "out of memory" in out, '"payload"' in out) == (0, True, True)
