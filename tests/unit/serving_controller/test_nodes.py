"""Which nodes of replicas are answered, and what each may read."""

from dataclasses import replace
from datetime import timedelta

import pytest

from schemas import layout
from schemas.node import LeasedNode
from schemas.object_requests import MAX_AGE, ObjectRequest
from services.serving_controller.decide import nodes
from services.serving_controller.model import NodeRecord
from services.serving_controller.protocol import FolderState, ModelFolder, NodeReport, ReplicaStart
from shared.device_leases.lease import HeldLease, LeaseState
from shared.nodes import access
from shared.signatures import PrivateKey, signed_request
from tests.unit.serving_controller.builders import BASE_SHA, NOON, OTHER_SHA

KEY, STRANGER = PrivateKey("1" * 64), PrivateKey("2" * 64)
NODE = LeasedNode(node_id="r-1-e1-n0", public_key=KEY.public_key)
LEASE = HeldLease("serve-1-0", "lease-1", LeaseState.HELD, until=NOON, node=NODE)
REPORT = NodeReport(lease_id="lease-1", node_id="r-1-e1-n0", time=NOON)
DIGEST = "d" * 64
BASE = ModelFolder(folder_id="f-1", kind="base", digest=BASE_SHA, base_sha=BASE_SHA)
ADAPTER = ModelFolder(folder_id="f-2", kind="adapter", digest=DIGEST, base_sha=BASE_SHA, rank=8)


def why_not(lease: HeldLease = LEASE, report: NodeReport = REPORT, *, key: PrivateKey = KEY, now=NOON) -> str:
    return access.why_not_of_the_node(
        lease, report, signed_request(b"body", key.signature_of(b"body")), now=now
    )


class TestNode:
    def test_of_a_lease_that_is_held_is_answered(self):
        assert why_not() == ""

    @pytest.mark.parametrize(
        ("reason", "expected"),
        [
            (why_not(replace(LEASE, state=LeaseState.ENDED)), "the lease is ended, expected held"),
            (why_not(replace(LEASE, node=None)), "expected held"),
            (why_not(report=REPORT.model_copy(update={"node_id": "r-2"})), "the lease's node is r-1-e1-n0"),
            (
                why_not(replace(LEASE, node=NODE.model_copy(update={"public_key": None}))),
                "started without a key",
            ),
            (why_not(key=STRANGER), "is not signed with its key"),
            (why_not(now=NOON + MAX_AGE + timedelta(seconds=1)), "expected at most 0:02:00 from"),
            (why_not(now=NOON - MAX_AGE - timedelta(seconds=1)), "expected at most 0:02:00 from"),
        ],
        ids=["over", "no node", "another node", "no key", "another key", "old", "of the future"],
    )
    def test_that_proves_nothing_is_refused(self, reason, expected):
        assert reason.startswith("node r-")
        assert expected in reason

    def test_that_reports_another_address_than_its_backend_has_is_refused(self):
        lease = replace(LEASE, node=NODE.model_copy(update={"address": "10.0.0.7"}))
        at = {
            host: REPORT.model_copy(update={"url": f"https://{host}:8000"}) for host in ("10.0.0.7", "evil")
        }
        assert nodes.why_not_its_address(lease, at["10.0.0.7"]) == ""
        assert nodes.why_not_its_address(lease, REPORT) == "", "nothing listens yet"
        assert nodes.why_not_its_address(LEASE, at["evil"]) == "", "its backend has not said yet"
        expected = "node r-1-e1-n0: its replica listens at evil, its cluster backend has it at 10.0.0.7"
        assert nodes.why_not_its_address(lease, at["evil"]) == expected

    @pytest.mark.parametrize(
        ("lease", "expected"),
        [
            (LEASE, False),
            (replace(LEASE, node=None), True),
            (replace(LEASE, state=LeaseState.ASKED, node=None), True),
            (replace(LEASE, state=LeaseState.QUEUED, node=None), True),
            (replace(LEASE, state=LeaseState.REFUSED, node=None), False),
        ],
        ids=["known", "without a node", "asked", "queued", "refused"],
    )
    def test_may_come_before_its_lease_is_known_to_have_it(self, lease, expected):
        assert access.is_awaited(lease) is expected


class TestObjects:
    RECORD = NodeRecord("serve-1-0", "lease-1", (BASE, ADAPTER), None, REPORT)

    @pytest.mark.parametrize(
        ("operation", "key", "is_allowed"),
        [
            ("get", layout.base_model(BASE_SHA), True),
            ("head", layout.model(DIGEST, "files/adapter_config.json"), True),
            ("get", layout.model(BASE_SHA), False),
            ("get", layout.base_model(OTHER_SHA), False),
            ("get", layout.base_model(BASE_SHA, "../x"), False),
            ("get", layout.base_model(BASE_SHA, "a\\b"), False),
            ("list", layout.base_model(BASE_SHA, ""), False),
            ("put", layout.model(DIGEST), False),
        ],
    )
    def test_are_those_that_shall_be_there_to_read(self, operation, key, is_allowed):
        reason = access.why_not_read(
            ObjectRequest(operation=operation, key=key), nodes.prefixes_of(self.RECORD)
        )
        assert (reason == "") is is_allowed

    def test_are_none_before_anything_shall_be_there(self):
        asked = ObjectRequest(operation="get", key=layout.base_model(BASE_SHA))
        assert access.why_not_read(asked, nodes.prefixes_of(None)).endswith("expected to read below nothing")
        assert access.why_not_read(asked, nodes.prefixes_of(replace(self.RECORD, folders=()))) != ""


class TestRecord:
    START = ReplicaStart(
        incarnation="second",
        served_name="tiny",
        model_dir="/model",
        max_lora_rank=8,
        inference_key_sha256=DIGEST,
        management_key_sha256=DIGEST,
        engine={
            "dtype": "float32",
            "enforce_eager": True,
            "one_process": True,
            "num_devices": 1,
            "max_loras": 8,
            "max_cpu_loras": 8,
            "max_model_len": None,
            "max_num_seqs": 1,
            "cache_bytes": 1,
            "tool_call_parser": "",
            "threads": None,
        },
    )

    @pytest.mark.parametrize(
        ("start", "reported", "is_alive"),
        [
            (None, {}, False),
            (START, {}, True),
            (START, {"incarnation": "first", "is_alive": False}, True),
            (START, {"incarnation": "second", "is_alive": True}, True),
            (START, {"incarnation": "second", "is_alive": False}, False),
        ],
        ids=["not started", "not heard of", "of the one before", "runs", "has ended"],
    )
    def test_a_start_lives_until_the_node_says_that_it_has_ended(self, start, reported, is_alive):
        report = REPORT.model_copy(update=reported)
        assert NodeRecord("serve-1-0", "lease-1", (), start, report).is_alive is is_alive

    def test_a_folder_that_was_not_reported_is_on_its_way(self):
        state = FolderState(folder_id="f-1", path="/model")
        record = NodeRecord(
            "r", "lease-1", (BASE, ADAPTER), None, REPORT.model_copy(update={"folders": (state,)})
        )
        assert record.state_of(BASE) == state
        assert record.state_of(ADAPTER) == FolderState(folder_id="f-2")
