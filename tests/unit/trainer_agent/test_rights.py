"""Which objects a node may reach, and which of its requests are answered at all."""

from dataclasses import replace
from datetime import timedelta

import pytest

from schemas import layout
from schemas.base import BundleRef, StartFrom
from schemas.job import JobScheduled
from schemas.object_requests import ObjectRequest, ObjectRequests, Operation
from schemas.specification import Method, Recipe
from services.trainer_agent import rights
from services.trainer_agent.model import Attempt, AttemptState
from shared.signatures import PrivateKey, signed_request
from tests.unit.trainer_agent.attempts import NOON, a_schedule, an_attempt

BASE, DATASET, MODEL, PART, OTHER = ("a" * 64, "a" * 64, "c" * 64, "d" * 64, "b" * 64)
KEYS = tuple(PrivateKey(str(index + 1) * 64) for index in range(2))
BUNDLE = BundleRef(attempt=1, step=5, manifest_sha256=OTHER)
OF_ANOTHER = BUNDLE.model_copy(update={"job_id": "ftjob-2"})
MODEL_OF_ANOTHER = StartFrom(name="m", job_id="ftjob-3", bundle=BUNDLE, digest=MODEL)
CHECKPOINT_OF_ANOTHER = MODEL_OF_ANOTHER.model_copy(update={"digest": None})
HEADS = {"upload_id": "u-1", "part": 1}


def attempt_of(order: JobScheduled | None = None, **changes: object) -> Attempt:
    return an_attempt(order=order or a_schedule(), **changes)


def comparing() -> JobScheduled:
    spec = a_schedule().spec.model_copy(update={"recipe": Recipe(method=Method.DPO)})
    return a_schedule().model_copy(update={"spec": spec})


def starting_from(start: StartFrom) -> JobScheduled:
    spec = a_schedule().spec.model_copy(update={"start_from": start})
    return a_schedule().model_copy(update={"spec": spec})


def asked(operation: str, key: str, **changes: object) -> ObjectRequest:
    needed = {"sha256": PART, "size_bytes": 1, **HEADS} if operation in rights.WRITES else {}
    return ObjectRequest(operation=operation, key=key, **needed | changes)


def may(operation: str, key: str, attempt: Attempt, node: int = 0, **changes: object) -> bool:
    return not rights.why_not_allowed(asked(operation, key, **changes), attempt, node)


def part_of(job_id: str, attempt: int = 1, step: int = 5, sha256: str = PART) -> str:
    return layout.checkpoint(job_id, attempt, step, layout.part(sha256))


FEATURE = layout.feature(DATASET, OTHER)
MANIFEST = layout.checkpoint("ftjob-1", 1, 5)
LOG = layout.log("ftjob-1", 1, 0, 3)
RESUMING = a_schedule().model_copy(update={"resume": OF_ANOTHER})


@pytest.mark.parametrize(
    ("operation", "key", "order"),
    [
        ("get", layout.base_model(BASE), None),
        ("get", layout.base_model(BASE, layout.file("model.safetensors")), None),
        ("head", layout.dataset(DATASET), None),
        ("get", layout.dataset(DATASET, layout.part(PART)), None),
        ("get", part_of("ftjob-1", attempt=7), None),
        ("list", "checkpoints/ftjob-1/", None),
        ("get", part_of("ftjob-2"), RESUMING),
        ("get", layout.model(MODEL, layout.file("adapter.safetensors")), starting_from(MODEL_OF_ANOTHER)),
        ("get", part_of("ftjob-3"), starting_from(CHECKPOINT_OF_ANOTHER)),
        ("get", FEATURE, comparing()),
        ("list", f"features/{DATASET}/{OTHER}", comparing()),
        ("put", FEATURE, comparing()),
        ("put", layout.feature(DATASET, f"{OTHER}.1", layout.part(PART)), comparing()),
        ("put", MANIFEST, None),
        ("put", part_of("ftjob-1"), None),
        ("start_upload", part_of("ftjob-1"), None),
        ("put_part", part_of("ftjob-1"), None),
        ("complete_upload", part_of("ftjob-1"), None),
        ("abort_upload", part_of("ftjob-1"), None),
        ("put", LOG, None),
        ("head", LOG, None),
    ],
)
def test_a_node_reaches_what_is_of_its_attempt(operation, key, order):
    assert may(operation, key, attempt_of(order))


@pytest.mark.parametrize(
    ("operation", "key", "order"),
    [
        ("get", layout.base_model(OTHER), None),
        ("get", layout.dataset(OTHER), None),
        ("get", part_of("ftjob-2"), None),
        ("get", part_of("ftjob-2", step=6), RESUMING),
        ("get", part_of("ftjob-2", attempt=2), RESUMING),
        ("get", part_of("ftjob-11"), None),
        ("get", layout.model(MODEL), None),
        ("get", layout.model(OTHER), starting_from(MODEL_OF_ANOTHER)),
        ("get", part_of("ftjob-3"), starting_from(MODEL_OF_ANOTHER)),
        ("get", FEATURE, None),
        ("put", FEATURE, None),
        ("put", layout.feature(OTHER, OTHER), comparing()),
        ("put", layout.feature(DATASET, "elsewhere"), comparing()),
        ("put", f"features/{DATASET}/{OTHER}.10/manifest.json", comparing()),
        ("put", layout.base_model(BASE), None),
        ("put", layout.dataset(DATASET, "report.json"), None),
        ("put", layout.model(MODEL), starting_from(MODEL_OF_ANOTHER)),
        ("put", part_of("ftjob-1", attempt=2), None),
        ("put", part_of("ftjob-2"), RESUMING),
        ("put", part_of("ftjob-1", sha256=OTHER), None),
        ("start_upload", part_of("ftjob-1", sha256=OTHER), None),
        ("put", layout.checkpoint("ftjob-1", 1, 5, "other.json"), None),
        ("put", layout.log("ftjob-1", 1, 1, 3), None),
        ("get", layout.log("ftjob-1", 1, 1, 3), None),
        ("put", layout.log("ftjob-2", 1, 0, 3), None),
        ("put", f"{layout.node_logs('ftjob-1', 1, 0)}x", None),
        ("list", "checkpoints/", None),
        ("list", "checkpoints/ftjob-2/", None),
        ("list", "logs/ftjob-1/", None),
        ("list", f"datasets/{DATASET}/", None),
        ("get", "blobs/x", None),
        ("get", f"datasets/{DATASET}/../{OTHER}/manifest.json", None),
        ("get", f"datasets/{DATASET}//manifest.json", None),
        ("get", f"datasets/{DATASET}/.", None),
        ("get", f"datasets/{DATASET}/a\\b", None),
        ("get", f"datasets/{DATASET}/a\nb", None),
        ("list", "checkpoints/ftjob-1/../ftjob-2/", None),
    ],
)
def test_a_node_reaches_nothing_else(operation, key, order):
    assert not may(operation, key, attempt_of(order))


def test_no_operation_takes_an_object_away():
    assert {*Operation} == {*rights.READS, *rights.WRITES, Operation.LIST}
    assert not {"delete", "copy"} & {*Operation}


def test_manifests_are_of_the_node_that_has_rank_0():
    attempt = attempt_of()
    assert [may("put", MANIFEST, attempt, node) for node in range(2)] == [True, False]
    assert [may("put", part_of("ftjob-1"), attempt, node) for node in range(2)] == [True, True]


@pytest.mark.parametrize("attempt", [an_attempt(order=None), attempt_of(state=AttemptState.CLOSED)])
def test_before_the_order_and_after_the_last_fact_a_node_has_its_log(attempt):
    assert may("put", LOG, attempt)
    assert not may("put", MANIFEST, attempt)
    assert not may("get", layout.dataset(DATASET), attempt)


@pytest.mark.parametrize(
    ("operation", "missing"),
    [("put", "sha256"), ("put", "size_bytes"), ("put_part", "part"), ("complete_upload", "upload_id")],
)
def test_what_is_written_is_named_whole(operation, missing):
    nothing = "" if missing == "upload_id" else None
    request = asked(operation, part_of("ftjob-1"), **{missing: nothing})
    assert f"has no {missing}" in rights.why_not_allowed(request, attempt_of(), 0)


def test_a_refusal_names_what_who_and_what_was_expected():
    refusal = rights.why_not_allowed(asked("put", layout.dataset(OTHER)), attempt_of(), 1)
    assert f"put datasets/{OTHER}/manifest.json" in refusal
    assert "node 1 of attempt 1 of ftjob-1" in refusal
    assert layout.checkpoints("ftjob-1", 1) in refusal


def why_not(attempt: Attempt, *, signer=KEYS[0], body=None, newest=1, now=NOON, **changes: object) -> str:
    fields = {"job_id": "ftjob-1", "attempt": 1, "node_index": 0, "node_id": "node-0", "time": NOON}
    request = ObjectRequests(requests=(asked("get", LOG),), **fields | changes)
    content = request.model_dump_json().encode()
    signed = signed_request(body or content, signer.signature_of(content))
    refused = rights.why_not_of_the_node(attempt, request, signed, now=now, newest=newest)
    return f"{refused[0]}: {refused[1]}" if refused else ""


def with_keys(**changes: object) -> Attempt:
    return attempt_of(public_keys=tuple(key.public_key for key in KEYS), **changes)


def test_a_node_of_the_newest_attempt_is_answered():
    assert why_not(with_keys()) == ""
    for seconds in (-110, 110):
        assert why_not(with_keys(), now=NOON + timedelta(seconds=seconds)) == ""
    assert why_not(with_keys(state=AttemptState.CLOSED)) == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"signer": KEYS[1]}, "not signed with its key"),
        ({"signer": PrivateKey("f" * 64)}, "not signed with its key"),
        ({"body": b"{}"}, "not signed with its key"),
        ({"node_index": 1}, "not a node of the attempt"),
        ({"node_index": 7}, "not a node of the attempt"),
        ({"node_id": "node-1"}, "not a node of the attempt"),
        ({"node_index": 1, "node_id": "node-1"}, "not signed with its key"),
        ({"now": NOON + timedelta(seconds=130)}, "signed at"),
        ({"now": NOON - timedelta(seconds=130)}, "signed at"),
        ({"newest": 2}, "attempt 2 is the newest"),
    ],
)
def test_nobody_else_is(changes, reason):
    assert reason in why_not(with_keys(), **changes)


def test_each_refusal_has_a_word_for_metrics():
    assert why_not(with_keys(), node_index=7).startswith("no_node: ")
    assert why_not(with_keys(), signer=KEYS[1]).startswith("unsigned: ")
    assert why_not(attempt_of()).startswith("unsigned: ")
    assert why_not(with_keys(), now=NOON + timedelta(seconds=130)).startswith("clock: ")
    assert why_not(with_keys(), newest=2).startswith("over: ")
    assert why_not(with_keys(nodes_released=True)).startswith("over: ")


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        (with_keys(nodes_released=True), "released"),
        (replace(with_keys(), nodes=()), "not a node of the attempt"),
        (attempt_of(), "older release"),
    ],
)
def test_an_attempt_without_nodes_or_keys_has_no_rights(attempt, reason):
    assert reason in why_not(attempt)


def test_a_request_is_signed_for_its_purpose_alone():
    headers = KEYS[0].signed([], topic="t", key=b"", value=b"")
    record = headers[0][1].decode()
    assert not signed_request(b"", record).is_by(KEYS[0].public_key)
    assert not signed_request(b"", "no base64").is_by(KEYS[0].public_key)
