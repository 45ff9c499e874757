"""What is created for an attempt on Kubernetes, and what its record, Job and pods say together."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from services.provisioner.backends.kubernetes import manifest
from services.provisioner.backends.kubernetes.machines import takes_pods
from services.provisioner.backends.kubernetes.status import (
    Attempt,
    Job,
    Pod,
    Record,
    parse_job,
    parse_pod,
    parse_record,
    seen_of,
    status_of,
)
from services.provisioner.backends.protocol import AttemptSpec, AttemptStatus, Cause, Member, MemberState
from services.provisioner.settings import KubernetesPool

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
SPEC = AttemptSpec(
    "a-x-e1",
    "spot",
    2,
    8,
    ("python", "-m", "runner"),
    job_id="x",
    tenant="demo",
    attempt=1,
    env=(("PYTHONPATH", "/app"),),
    grace_seconds=12.2,
)
POOL = KubernetesPool(namespace="ml", image="trainer:1", secret="runner")


def pod_spec(spec: AttemptSpec = SPEC, *, has_gangs: bool = False, **changes: Any) -> Mapping[str, Any]:
    job = manifest.job(spec, POOL.model_copy(update=changes), has_gangs=has_gangs)
    return job["spec"]["template"]["spec"]


def variables(spec: AttemptSpec = SPEC, **changes: Any) -> dict[str, Any]:
    [container] = pod_spec(spec, **changes)["containers"]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


class TestManifest:
    def test_a_job_runs_each_index_once(self):
        job = manifest.job(SPEC, POOL, has_gangs=False)["spec"]
        assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 2, 2)
        assert (job["backoffLimitPerIndex"], job["podReplacementPolicy"]) == (0, "Failed")
        assert job["template"]["spec"]["restartPolicy"] == "Never"
        assert job["template"]["metadata"]["finalizers"] == [manifest.UNRECORDED]

    def test_a_job_begins_suspended_and_names_its_queue(self):
        job = manifest.job(SPEC, POOL.model_copy(update={"queue": "research"}), has_gangs=False)
        assert job["spec"]["suspend"] is True
        assert job["metadata"]["labels"][manifest.QUEUE] == "research"
        assert manifest.QUEUE not in job["spec"]["template"]["metadata"]["labels"]
        assert manifest.QUEUE not in manifest.job(SPEC, POOL, has_gangs=False)["metadata"]["labels"]

    def test_a_node_knows_whose_it_is_and_secrets_are_names_alone(self):
        [container] = pod_spec()["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": "runner"}}]
        named = variables()
        assert named["RUNNER_JOB_ID"] == "x"
        assert named["RUNNER_NODE_ID"] == "a-x-e1-n$(RUNNER_NODE_INDEX)"
        index = f"metadata.labels['{manifest.INDEX}']"
        assert named["RUNNER_NODE_INDEX"] == {"fieldRef": {"fieldPath": index}}
        assert named["PYTHONPATH"] == "/app"
        assert list(named).index("RUNNER_NODE_INDEX") < list(named).index("RUNNER_NODE_ID")

    def test_the_node_of_a_lease_gets_the_variables_that_its_program_needs(self):
        lease = replace(
            SPEC, nodes=1, job_id="", lease_id="lease-1", variables=("RUNNER_URL", "RETUNE_CA_FILE")
        )
        pod = manifest.job(lease, POOL, has_gangs=False)["spec"]["template"]
        assert pod["metadata"]["labels"][manifest.LEASE] == "true"
        assert manifest.LEASE not in manifest.job(SPEC, POOL, has_gangs=False)["metadata"]["labels"]
        [container] = pod["spec"]["containers"]
        assert container["envFrom"] == []
        variables = {each["name"]: each for each in container["env"]}
        reference = {"name": "runner", "key": "RUNNER_URL", "optional": True}
        assert variables["RUNNER_URL"]["valueFrom"] == {"secretKeyRef": reference}
        assert variables["RUNNER_LEASE_ID"]["value"] == "lease-1"
        assert "RUNNER_JOB_ID" not in variables

    def test_a_node_is_given_its_own_key_alone(self):
        secret = manifest.keys(SPEC, POOL, ["key of 0", "key of 1"])
        assert secret["stringData"] == {"0": "key of 0", "1": "key of 1"}
        assert secret["metadata"]["labels"][manifest.ATTEMPT] == SPEC.name
        pod = pod_spec()
        [volume] = [each["secret"] for each in pod["volumes"] if "secret" in each]
        assert volume["secretName"] == secret["metadata"]["name"]
        [mount] = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "keys"]
        assert (mount["subPathExpr"], mount["readOnly"]) == ("$(RUNNER_NODE_INDEX)", True)
        assert variables()["RUNNER_NODE_KEY_FILE"] == mount["mountPath"]
        assert "key of" not in str(manifest.job(SPEC, POOL, has_gangs=True))
        assert "key of" not in str(manifest.record(SPEC, POOL))

    def test_graces_and_fences_are_whole_seconds_of_the_pool(self):
        assert pod_spec()["terminationGracePeriodSeconds"] == 13
        assert variables()["RUNNER_DEFAULT_GRACE"] == "PT13S"
        assert variables(fenced_after_seconds=60.5)["RUNNER_FENCE_AFTER"] == "PT45.5S"

    @pytest.mark.parametrize(("seconds", "expected"), [(-3.0, 1), (0.0, 1), (0.5, 1), (1.1, 2)])
    def test_no_deletion_is_by_force(self, seconds, expected):
        assert manifest.grace(seconds) == expected

    def test_devices_are_asked_for_by_their_resource(self):
        [container] = pod_spec(accelerator_resource="nvidia.com/gpu", requests={"cpu": "4"})["containers"]
        assert container["resources"] == {
            "requests": {"cpu": "4", "nvidia.com/gpu": 8},
            "limits": {"nvidia.com/gpu": 8},
        }

    def test_a_gang_is_spread_and_excluded_machines_are_avoided(self):
        affinity = pod_spec(
            AttemptSpec("a-x-e1", "spot", 2, 8, ("run",), "x", "demo", 1, excluded=("k1", "k2"))
        )["affinity"]
        [own] = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert own["labelSelector"]["matchLabels"] == {manifest.ATTEMPT: "a-x-e1"}
        [term] = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert [(each["operator"], each["values"]) for each in term["matchFields"]] == [
            ("NotIn", ["k1"]),
            ("NotIn", ["k2"]),
        ]

    def test_a_gang_is_one_group_where_the_cluster_has_them(self):
        assert pod_spec(has_gangs=True)["schedulingGroup"] == {"podGroupName": "a-x-e1"}
        assert manifest.pod_group(SPEC, POOL)["spec"] == {"schedulingPolicy": {"gang": {"minCount": 2}}}
        assert "schedulingGroup" not in pod_spec()

    def test_pods_speak_to_no_api_and_have_no_privilege(self):
        pod = pod_spec()
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        [container] = pod["containers"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}

    def test_what_is_not_set_is_not_there(self):
        assert not {"nodeSelector", "priorityClassName", "imagePullSecrets"} & set(pod_spec())
        assert pod_spec(node_selector={"gpu": "h100"})["nodeSelector"] == {"gpu": "h100"}

    def test_a_lost_machine_keeps_its_pods_for_so_long(self):
        tolerations = pod_spec(lost_after_seconds=7, tolerations=({"key": "spot", "operator": "Exists"},))[
            "tolerations"
        ]
        assert tolerations[0] == {"key": "spot", "operator": "Exists"}
        assert {each["key"]: each["tolerationSeconds"] for each in tolerations[1:]} == dict.fromkeys(
            manifest.TAINTS, 7
        )


def a_pod(index: int = 0, **changes: Any) -> Pod:
    fields = {"phase": "Running", "host": "k1", "address": f"10.1.0.{index}", "has_started": True, **changes}
    return Pod(f"a-x-e1-{index}-abc", f"uid-{index}", "a-x-e1", index, **fields)


JOB = Job("a-x-e1")


def status(*pods: Pod, job: Job | None = JOB, lost: tuple[str, ...] = (), **record: Any):
    fields = {"digest": "d", "nodes": 1, "was_submitted": True, **record}
    attempt = Attempt(Record("a-x-e1", **fields), job, pods)
    return status_of(attempt, lost, now=NOW, gang_wait=timedelta(seconds=60))


def member(*pods: Pod, **changes: Any) -> Member:
    return status(*pods, **changes).members[0]


class TestStatus:
    @pytest.mark.parametrize("pods", [(), (Pod("p", "u", "a-x-e1", 0, "Running", host="k1"),)])
    def test_it_says_whether_its_nodes_have_keys(self, pods):
        assert status(*pods, has_keys=True).has_keys
        assert not status(*pods).has_keys

    def test_a_node_without_a_pod_waits(self):
        assert status() == AttemptStatus("a-x-e1", (Member(0, MemberState.QUEUED),))

    def test_what_was_not_submitted_yet_starts(self):
        assert member(job=None, was_submitted=False).state is MemberState.STARTING

    def test_a_pod_that_is_not_scheduled_waits_with_the_words_of_the_scheduler(self):
        seen = status(a_pod(phase="Pending", host="", has_started=False, waiting_for="0/3 nodes"))
        assert (seen.is_queued, seen.waiting_for, seen.refusal) == (True, "0/3 nodes", "")

    def test_of_a_gang_the_one_that_has_room_and_the_one_that_has_none_give_their_reasons(self):
        reasons = ("waiting for minCount pods", "waiting for minCount pods", "0/3 nodes", "another")
        pods = [
            a_pod(index, phase="Pending", host="", has_started=False, waiting_for=reason)
            for index, reason in enumerate(reasons)
        ]
        assert status(*pods, nodes=4).waiting_for == "waiting for minCount pods; 0/3 nodes"

    def test_a_suspended_job_waits_in_its_queue(self):
        assert status(job=Job("a-x-e1", True, "research")).waiting_for == "suspended in queue research"
        assert status(job=Job("a-x-e1", True)).waiting_for == ""

    def test_a_pod_starts_until_its_container_runs(self):
        assert member(a_pod(phase="Pending", has_started=False)).state is MemberState.STARTING
        assert member(a_pod()) == Member(0, MemberState.RUNNING, host="k1", address="10.1.0.0")

    def test_a_gang_waits_until_the_cluster_says_where_its_pods_are(self):
        nowhere = a_pod(1, address="", has_started=False, scheduled_at=NOW)
        seen = status(a_pod(), nowhere, nodes=2)
        assert (seen.is_queued, seen.addresses) == (True, ())
        assert seen.waiting_for == "a-x-e1-1-abc to have an address"
        assert status(a_pod(), a_pod(1), nodes=2).addresses == ("10.1.0.0", "10.1.0.1")
        assert not status(a_pod(address=""), nodes=1).is_queued
        late = status(a_pod(scheduled_at=NOW - timedelta(seconds=60)), nowhere, nodes=2)
        assert late.refusal.endswith("for the others: a-x-e1-1-abc to have an address")

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    @pytest.mark.parametrize("code", [0, 1, 137, 143])
    def test_a_runner_that_exited_is_no_more_than_that(self, phase, code):
        ended = member(a_pod(phase=phase, exit_code=code))
        assert (ended.state, ended.exit_code, ended.cause) == (MemberState.ENDED, code, Cause.EXITED)

    def test_a_runner_that_was_killed_after_its_grace_has_no_code(self):
        ended = member(a_pod(phase="Failed", exit_code=137, ends_at=NOW))
        assert (ended.exit_code, ended.cause) == (None, Cause.CANCELLED)

    @pytest.mark.parametrize(("code", "expected"), [(0, 0), (143, 143), (137, None)])
    def test_whatever_a_disrupted_pod_exits_with_it_was_preempted(self, code, expected):
        pod = a_pod(phase="Failed", exit_code=code, ends_at=NOW, disruption="PreemptionByScheduler")
        ended = member(pod)
        assert (ended.exit_code, ended.cause) == (expected, Cause.PREEMPTED)
        assert (ended.notice_deadline, ended.notice_source) == (NOW, "preemption")

    @pytest.mark.parametrize(
        ("reason", "source"),
        [
            ("PreemptionByScheduler", "preemption"),
            ("EvictionByEvictionAPI", "eviction"),
            ("DeletionByTaintManager", "taint"),
            ("", "deletion"),
        ],
    )
    def test_a_deletion_is_a_notice_by_its_reason(self, reason, source):
        noticed = member(a_pod(ends_at=NOW, disruption=reason))
        assert noticed.state is MemberState.RUNNING
        assert (noticed.notice_deadline, noticed.notice_source) == (NOW, source)

    def test_the_notice_of_the_platform_has_no_source(self):
        noticed = member(a_pod(ends_at=NOW, notice=NOW - timedelta(seconds=0.3)))
        assert (noticed.notice_deadline, noticed.notice_source) == (NOW - timedelta(seconds=0.3), "")

    @pytest.mark.parametrize(("later", "expected"), [(-10, 20), (-40, -10), (0, None), (5, None)])
    def test_a_shorter_grace_counts_from_the_first_deletion(self, later, expected):
        pod = a_pod(ends_at=NOW, grace_seconds=30)
        deadline, now = NOW + timedelta(seconds=later), NOW - timedelta(seconds=25)
        assert pod.grace_until(deadline, now=now) == expected

    def test_the_first_grace_is_the_time_that_is_left(self):
        assert a_pod().grace_until(NOW, now=NOW - timedelta(seconds=25)) == 25.0

    def test_a_disruption_before_the_end_of_the_platforms_notice_is_one_more(self):
        pod = a_pod(ends_at=NOW, notice=NOW + timedelta(minutes=1), disruption="EvictionByEvictionAPI")
        assert (member(pod).notice_deadline, member(pod).notice_source) == (NOW, "eviction")

    def test_a_pod_that_its_queue_took_back_was_preempted(self):
        suspended = Job("a-x-e1", True, "research")
        assert member(a_pod(ends_at=NOW), job=suspended).notice_source == "suspension"
        ended = member(a_pod(phase="Failed", exit_code=143, ends_at=NOW), job=suspended)
        assert (ended.exit_code, ended.cause) == (143, Cause.PREEMPTED)
        again = member(a_pod(phase="Failed", exit_code=143, ends_at=NOW), job=None, was_taken_back=True)
        assert again == ended

    def test_a_deleted_pod_on_a_machine_that_nobody_hears_of_is_lost(self):
        pod = a_pod(ends_at=NOW, disruption="DeletionByTaintManager")
        ended = member(pod, lost=("k1",))
        assert (ended.state, ended.cause, ended.host) == (MemberState.ENDED, Cause.NODE_LOST, "k1")
        assert ended.notice_deadline is None
        assert member(a_pod(), lost=("k1",)).state is MemberState.RUNNING, "it may come back"

    def test_a_machine_that_was_removed_is_lost(self):
        ended = member(a_pod(phase="Failed", ends_at=NOW, disruption="DeletionByPodGC"))
        assert ended.cause is Cause.NODE_LOST

    def test_a_pod_that_never_ran_and_was_deleted_was_cancelled(self):
        ended = member(a_pod(phase="Pending", host="", has_started=False, ends_at=NOW))
        assert (ended.state, ended.cause) == (MemberState.ENDED, Cause.CANCELLED)

    def test_a_job_that_somebody_deleted_in_the_queue_was_cancelled(self):
        assert member(job=None).cause is Cause.CANCELLED

    def test_a_node_that_ran_and_left_no_trace_is_unknown(self):
        ended = member(job=None, seen={0: {"host": "k1"}})
        assert (ended.cause, ended.host) == (Cause.UNKNOWN, "k1")

    def test_a_job_that_is_over_has_lost_what_left_no_pod(self):
        assert member(job=Job("a-x-e1", is_over=True)).cause is Cause.NODE_LOST

    def test_what_is_recorded_counts_whatever_is_there(self):
        first = member(
            a_pod(phase="Failed", exit_code=143, ends_at=NOW, disruption="EvictionByEvictionAPI", address="")
        )
        seen = {0: seen_of(first)}
        assert member(seen=seen, job=None) == first
        assert member(a_pod(host="k2"), seen=seen) == first

    def test_a_gang_that_has_lost_a_node_waits_for_no_other(self):
        ended = a_pod(phase="Failed", exit_code=143, ends_at=NOW, disruption="EvictionByEvictionAPI")
        waiting = a_pod(1, phase="Pending", host="", has_started=False, waiting_for="0/3 nodes")
        seen = status(ended, waiting, nodes=2)
        assert [member.state for member in seen.members] == [MemberState.ENDED, MemberState.STARTING]
        assert (seen.is_queued, seen.waiting_for) == (False, "")

    def test_a_part_of_a_gang_gives_up_after_a_while(self):
        waiting = a_pod(1, phase="Pending", host="", has_started=False, waiting_for="0/3 nodes")
        early, late = NOW - timedelta(seconds=59), NOW - timedelta(seconds=60)
        assert status(a_pod(scheduled_at=early), waiting, nodes=2).refusal == ""
        refused = status(a_pod(scheduled_at=late), waiting, nodes=2)
        assert refused.refusal == "1 of 2 nodes have waited 60 s for the others: 0/3 nodes"
        assert status(waiting, nodes=2).refusal == ""


POD = {
    "metadata": {
        "name": "a-x-e1-1-abc",
        "uid": "u",
        "labels": {manifest.ATTEMPT: "a-x-e1", manifest.INDEX: "1"},
        "annotations": {manifest.NOTICE: "2026-11-27T12:00:00.250000+00:00"},
        "creationTimestamp": "2026-11-27T11:59:00Z",
        "deletionTimestamp": "2026-11-27T12:00:01Z",
        "deletionGracePeriodSeconds": 30,
        "finalizers": [manifest.UNRECORDED, "batch.kubernetes.io/job-tracking"],
    },
    "spec": {"nodeName": "k2"},
    "status": {
        "phase": "Failed",
        "podIP": "10.1.0.7",
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-27T11:59:30Z"},
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"},
        ],
        "containerStatuses": [{"state": {"terminated": {"exitCode": 143}}}],
    },
}


class TestParsing:
    def test_a_pod(self):
        pod = parse_pod(POD)
        assert (pod.address, parse_pod(POD | {"status": {}}).address) == ("10.1.0.7", "")
        assert (pod.attempt, pod.index, pod.host, pod.exit_code) == ("a-x-e1", 1, "k2", 143)
        assert pod.notice == NOW + timedelta(seconds=0.25)
        assert (pod.ends_at, pod.scheduled_at) == (NOW + timedelta(seconds=1), NOW - timedelta(seconds=30))
        assert pod.grace_seconds == 30
        assert (pod.disruption, pod.is_recorded, pod.is_quiet) == ("PreemptionByScheduler", False, True)

    def test_a_pod_that_is_not_scheduled(self):
        condition = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
        pod = parse_pod(POD | {"spec": {}, "status": {"phase": "Pending", "conditions": [condition]}})
        assert (pod.host, pod.waiting_for, pod.scheduled_at) == ("", "0/3 nodes are available", None)

    @pytest.mark.parametrize(
        ("conditions", "is_over"),
        [
            ([], False),
            ([{"type": "Suspended", "status": "True"}], False),
            ([{"type": "FailureTarget", "status": "True"}], False),
            ([{"type": "Failed", "status": "True"}], True),
            ([{"type": "Complete", "status": "True"}], True),
        ],
    )
    def test_a_job(self, conditions, is_over):
        metadata = {"name": "a-x-e1", "labels": {manifest.QUEUE: "research"}}
        job = parse_job(
            {"metadata": metadata, "spec": {"suspend": True}, "status": {"conditions": conditions}}
        )
        assert job == Job("a-x-e1", True, "research", is_over)

    def test_a_record_is_read_as_it_was_written(self):
        content = manifest.record(SPEC, POOL)
        assert parse_record(content) == Record("a-x-e1", digest=SPEC.digest, nodes=2, has_keys=True)
        seen = seen_of(Member(1, MemberState.RUNNING, host="k1"))
        content["data"] |= {"submitted": "true", "stopped": "true", **dict([manifest.seen(1, seen)])}
        content["metadata"]["labels"][manifest.FORGOTTEN] = "2026-11-27"
        record = parse_record(content)
        assert (record.was_submitted, record.is_stopped, record.forgotten_on) == (True, True, "2026-11-27")
        assert record.seen == {1: {"host": "k1"}}
        assert not record.was_taken_back
        content["data"]["taken-back"] = "true"
        assert parse_record(content).was_taken_back

    def test_a_mark_is_the_record_of_nothing(self):
        assert parse_record(manifest.mark("a-x-e1", "retune")) == Record("a-x-e1", is_stopped=True)


class TestMachines:
    """Which Nodes take pods of a pool."""

    def a_node(
        self, *, ready: str = "True", allocatable: Mapping[str, str] | None = None, **spec: Any
    ) -> Any:
        conditions = [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": ready}]
        return {"spec": spec, "status": {"conditions": conditions, "allocatable": allocatable or {}}}

    @pytest.mark.parametrize("ready", ["False", "Unknown"])
    def test_one_that_is_not_ready_takes_none(self, ready):
        assert takes_pods(self.a_node(), POOL)
        assert not takes_pods(self.a_node(ready=ready), POOL)
        assert not takes_pods({"spec": {}, "status": {"conditions": None}}, POOL)

    def test_one_that_is_cordoned_takes_none(self):
        assert not takes_pods(self.a_node(unschedulable=True), POOL)

    def test_one_without_the_accelerator_takes_none(self):
        pool = POOL.model_copy(update={"accelerator_resource": "nvidia.com/gpu"})
        assert takes_pods(self.a_node(allocatable={"nvidia.com/gpu": "8"}), pool)
        assert not takes_pods(self.a_node(allocatable={"nvidia.com/gpu": "0"}), pool)
        assert not takes_pods(self.a_node(allocatable={"cpu": "8"}), pool)

    @pytest.mark.parametrize(
        ("toleration", "is_tolerated"),
        [
            ({"key": "spot", "operator": "Exists"}, True),
            ({"operator": "Exists"}, True),
            ({"key": "spot", "value": "yes"}, True),
            ({"key": "spot", "value": "yes", "effect": "NoSchedule"}, True),
            ({"key": "spot", "value": "yes", "effect": "NoExecute"}, False),
            ({"key": "spot", "value": "no"}, False),
            ({"key": "spot"}, False),
            ({"key": "gpu", "operator": "Exists"}, False),
            ({"key": "spot", "operator": "Gt", "value": "yes"}, False),
        ],
    )
    def test_a_taint_keeps_pods_away_that_do_not_tolerate_it(self, toleration, is_tolerated):
        node = self.a_node(taints=[{"key": "spot", "value": "yes", "effect": "NoSchedule"}])
        assert not takes_pods(node, POOL)
        assert takes_pods(node, POOL.model_copy(update={"tolerations": (toleration,)})) is is_tolerated

    def test_what_is_better_avoided_takes_pods(self):
        assert takes_pods(self.a_node(taints=[{"key": "old", "effect": "PreferNoSchedule"}]), POOL)
