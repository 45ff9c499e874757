"""A real Kubernetes control plane keeps the promises of every engine, and what it does beyond them is understood."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
import yaml

from deploy.kubernetes.cluster import NAMESPACE, ROLE, KubernetesCluster
from services.provisioner.backends.kubernetes import api, kubernetes_backends
from services.provisioner.backends.protocol import (
    AttemptSpec,
    AttemptStatus,
    Backend,
    BackendFailed,
    Cause,
    MemberState,
    NoCapacity,
    SpecConflict,
)
from services.provisioner.settings import KubernetesPool
from shared.clock import utc_now
from shared.processes.identity import marked, signal_marked
from tests.integration.backend_suite import BackendSuite, a_spec
from tests.integration.kubernetes import (
    JOBS,
    PLACE,
    SECRET,
    blocked,
    cordoned,
    evict,
    groups_of,
    jobs_of,
    pod_of,
    pods_of,
    put_secret,
    remove_by_force,
    secrets_of,
    status_of_job,
    suspend,
    tainted,
)
from tests.node_keys import NODE_KEYS
from tests.unit.shared.environments import SECRETS
from tests.waiting import until

FENCED_AFTER_SECONDS = 3.0


LEFT = (jobs_of, pods_of, groups_of, secrets_of)
"""What an attempt has beside its record."""


def a_backend(kubernetes: KubernetesCluster, *, retention_days: int = 30, **changes: object) -> Backend:
    pool = KubernetesPool(
        namespace=NAMESPACE,
        image="retune/trainer",
        secret=SECRET,
        kubeconfig=kubernetes.provisioner,
        lost_after_seconds=1,
    ).model_copy(update={"fenced_after_seconds": FENCED_AFTER_SECONDS, **changes})
    retention = timedelta(days=retention_days)
    return kubernetes_backends({"spot": pool}, node_keys=NODE_KEYS, logs_retention=retention)["spot"]


@pytest.fixture(scope="module", autouse=True)
def secret(kubernetes: KubernetesCluster) -> None:
    put_secret(kubernetes, SECRET, {"RUNNER_KAFKA_PASSWORD": "in the secret"})


class TestKubernetesBackend(BackendSuite):
    ASKS_EVERY = 0.25

    @pytest.fixture
    def restarted(self, kubernetes: KubernetesCluster) -> Callable[[], Backend]:
        return lambda: a_backend(kubernetes)

    @pytest.fixture
    def backend(self, restarted):
        return restarted()

    @pytest.fixture
    def end_abruptly(self):
        async def kill(name: str, index: int) -> None:
            signal_marked(f"RUNNER_NODE_ID={name}-n{index}", signal.SIGKILL)

        return kill

    async def test_a_gang_that_waits_is_queued_whole_and_then_runs(self, backend, spec, kubernetes, tmp_path):
        with cordoned(kubernetes, *kubernetes.nodes[1:]):
            await backend.start(spec)
            status = await self.until_shown(backend, spec, lambda status: bool(status.waiting_for))
            assert [member.state for member in status.members] == [MemberState.QUEUED] * 2
            assert (status.is_queued, status.refusal) == (True, "")
            assert self.words(tmp_path, 0) == self.words(tmp_path, 1) == []
        await until(lambda: "started" in self.words(tmp_path, 0) and "started" in self.words(tmp_path, 1))
        await self.until_shown(backend, spec, lambda status: not status.is_queued)

    async def test_a_queued_attempt_is_stopped_before_it_runs(self, backend, spec, kubernetes, tmp_path):
        with cordoned(kubernetes, *kubernetes.nodes):
            await backend.start(spec)
            await self.until_shown(backend, spec, lambda status: bool(status.waiting_for))
            assert groups_of(kubernetes, spec.name)
            await backend.stop(spec.name, 30.0)
        await self.until_cleared(kubernetes, spec)
        assert self.words(tmp_path, 0) == []

    async def test_a_stop_while_the_job_is_created_lets_no_runner_begin(
        self, backend, restarted, spec, kubernetes, tmp_path, monkeypatch
    ):
        create = api.Kubernetes.create

        async def stopped_first(self: api.Kubernetes, kind: str, body: api.Object) -> bool:
            if kind == "jobs":
                await restarted().stop(spec.name, 0.0)
            return await create(self, kind, body)

        monkeypatch.setattr(api.Kubernetes, "create", stopped_first)
        with pytest.raises(SpecConflict, match="was stopped while its job was created"):
            await backend.start(spec)
        await self.until_cleared(kubernetes, spec)
        assert self.words(tmp_path, 0) == self.words(tmp_path, 1) == []

    async def test_a_part_of_a_gang_gives_up_where_the_cluster_schedules_no_gangs(
        self, kubernetes, spec, monkeypatch
    ):
        async def has_none(_: api.Kubernetes) -> bool:
            return False

        monkeypatch.setattr(api.Kubernetes, "has_gangs", has_none)
        backend = a_backend(kubernetes, gang_wait_seconds=1.0)
        big = replace(spec, nodes=len(kubernetes.nodes) + 1)
        await backend.start(big)
        # The scheduler may need more than that second to write down why it placed no fourth pod.
        refusal = "3 of 4 nodes have waited 1 s for the others: 0/3 nodes are available"
        status = await self.until_shown(backend, big, lambda status: status.refusal.startswith(refusal))
        assert status.is_queued

    async def test_an_eviction_is_a_notice_and_then_the_end_of_one_node(
        self, backend, spec, kubernetes, tmp_path
    ):
        spec = replace(spec, argv=(*spec.argv[:3], "ignore", str(tmp_path)), grace_seconds=2.0)
        await self.started(backend, spec, tmp_path)
        evict(kubernetes, pod_of(kubernetes, spec.name, 1))
        status = await backend.inspect(spec.name)
        assert [member.notice_source for member in status.members] == ["", "eviction"]
        assert timedelta() < status.members[1].notice_deadline - utc_now() <= timedelta(seconds=3)
        await until(lambda: "term" in self.words(tmp_path, 1))
        member = await self.until_ended(backend, spec, 1)
        assert (member.exit_code, member.cause) == (None, Cause.PREEMPTED)
        # Once the Job has counted it, and has ended whatever it ends for that.
        await until(lambda: status_of_job(kubernetes, spec.name).get("failed") == 1, every=self.ASKS_EVERY)
        conditions = status_of_job(kubernetes, spec.name)["conditions"]
        assert [each["type"] for each in conditions if each["status"] == "True"] == []
        assert (await self.member(backend, spec, 0)).state is MemberState.RUNNING
        assert "term" not in self.words(tmp_path, 0)

    async def test_a_notice_that_is_passed_on_leaves_the_pod_its_grace(
        self, backend, spec, kubernetes, tmp_path
    ):
        spec = replace(spec, argv=(*spec.argv[:3], "ignore", str(tmp_path)), grace_seconds=30.0)
        await self.started(backend, spec, tmp_path)
        evict(kubernetes, pod_of(kubernetes, spec.name, 1))
        deadline = (await self.member(backend, spec, 1)).notice_deadline
        await until(lambda: utc_now() > deadline - timedelta(seconds=28), every=self.ASKS_EVERY)
        await backend.notify(spec.name, 1, deadline)
        assert (await self.member(backend, spec, 1)).notice_deadline == deadline
        nearer = deadline - timedelta(seconds=10)
        await backend.notify(spec.name, 1, nearer)
        assert (await self.member(backend, spec, 1)).notice_deadline == nearer
        await backend.end(spec.name, 1)
        await self.until_ended(backend, spec, 1)
        assert utc_now() < nearer

    async def test_a_preemption_that_nobody_watched_is_known_with_its_exit_code(
        self, kubernetes, spec, tmp_path
    ):
        backend = a_backend(kubernetes, requests={"cpu": "8"})
        await self.started(backend, spec, tmp_path)
        with blocked(kubernetes, nodes=len(kubernetes.nodes)):
            await until(
                lambda: all("term" in self.words(tmp_path, index) for index in range(2)),
                every=self.ASKS_EVERY,
            )
            for index in range(2):
                member = await self.until_ended(backend, spec, index)
                assert (member.exit_code, member.cause, member.notice_source) == (
                    143,
                    Cause.PREEMPTED,
                    "preemption",
                )
            await backend.stop(spec.name, 0.0)
        await self.until_cleared(kubernetes, spec)

    async def test_a_machine_that_is_emptied_is_a_notice(self, backend, spec, kubernetes, tmp_path):
        await self.started(backend, spec, tmp_path)
        host = (await self.member(backend, spec, 0)).host
        with tainted(kubernetes, host):
            member = await self.until_ended(backend, spec, 0)
        assert (member.exit_code, member.cause, member.notice_source) == (143, Cause.PREEMPTED, "taint")

    async def test_a_machine_that_is_cordoned_tainted_or_of_another_kind_takes_no_work(
        self, backend, kubernetes, monkeypatch
    ):
        monkeypatch.setattr(api, "NODES_PER_PAGE", 1)
        first, second, *_ = kubernetes.nodes
        assert await backend.machines("spot") == {*kubernetes.nodes}
        with cordoned(kubernetes, first), tainted(kubernetes, second):
            assert await backend.machines("spot") == {*kubernetes.nodes} - {first, second}
        gpus = a_backend(kubernetes, node_selector={"gpu": "h100"})
        assert await gpus.machines("spot") == frozenset()

    async def test_an_excluded_machine_is_not_used(self, backend, spec, kubernetes, tmp_path):
        *others, last = kubernetes.nodes
        spec = replace(spec, nodes=1, excluded=(*others, "sold"))
        with cordoned(kubernetes, last):
            await backend.start(spec)
            await self.until_shown(backend, spec, lambda status: bool(status.waiting_for))
            assert self.words(tmp_path, 0) == []
        await until(lambda: "started" in self.words(tmp_path, 0))
        assert (await self.member(backend, spec, 0)).host == last

    async def test_a_job_that_somebody_deletes_ends_with_notice_and_is_not_made_again(
        self, backend, spec, kubernetes, tmp_path
    ):
        await self.started(backend, spec, tmp_path)
        await backend.inspect(spec.name)
        kubernetes.request("DELETE", f"{JOBS}/{spec.name}", {"propagationPolicy": "Background"})
        for index in range(2):
            member = await self.until_ended(backend, spec, index)
            assert (member.exit_code, member.cause, member.notice_source) == (143, Cause.EXITED, "deletion")
        await backend.start(spec)
        assert jobs_of(kubernetes, spec.name) == []

    async def test_a_queue_admits_a_job_and_takes_its_machines_back_once(self, kubernetes, spec, tmp_path):
        backend = a_backend(kubernetes, queue="research")
        await backend.start(spec)
        status = await self.until_shown(backend, spec, lambda status: status.is_queued)
        assert status.waiting_for == "suspended in queue research"
        suspend(kubernetes, spec.name, is_suspended=False)
        await until(lambda: "started" in self.words(tmp_path, 0) and "started" in self.words(tmp_path, 1))
        assert (await self.member(backend, spec, 0)).state is MemberState.RUNNING
        suspend(kubernetes, spec.name, is_suspended=True)
        for index in range(2):
            assert (await self.until_ended(backend, spec, index)).cause is Cause.PREEMPTED
        assert jobs_of(kubernetes, spec.name) == [], "its queue would start it once more"

    async def test_a_lost_machine_is_blamed_and_its_fence_is_awaited(
        self, backend, spec, kubernetes, tmp_path
    ):
        await self.started(backend, spec, tmp_path)
        lost = (await self.member(backend, spec, 0)).host
        kubernetes.kill(lost)
        try:
            ended = await self.until_ended(backend, spec, 0)
            assert (ended.exit_code, ended.cause, ended.host) == (None, Cause.NODE_LOST, lost)
            assert ended.has_lost_machine
            assert (await self.member(backend, spec, 1)).state is MemberState.RUNNING
            assert list(marked(f"RUNNER_NODE_ID={spec.name}-n0")), "nobody reaches it"
            begun = utc_now()
            await backend.stop(spec.name, 0.0)
            assert utc_now() - begun >= timedelta(seconds=FENCED_AFTER_SECONDS)
            lost_member = await self.member(backend, spec, 0)
            assert (lost_member.cause, lost_member.has_lost_machine) == (Cause.NODE_LOST, True)
        finally:
            kubernetes.start_node(lost)
            await until(kubernetes.are_ready, every=self.ASKS_EVERY)

    async def test_a_control_plane_that_died_is_an_error_and_then_nothing_is_lost(
        self, backend, spec, kubernetes, tmp_path
    ):
        await self.started(backend, spec, tmp_path)
        for program in ("kube-controller-manager", "kube-apiserver"):
            kubernetes.kill(program)
        with pytest.raises(BackendFailed, match="GET /api/v1/namespaces/retune/pods"):
            await backend.inspect(spec.name)
        kubernetes.start_api_server()
        kubernetes.start_controllers()
        status = await backend.inspect(spec.name)
        assert [member.state for member in status.members] == [MemberState.RUNNING] * 2
        await backend.stop(spec.name, 30.0)
        assert [self.words(tmp_path, index).count("started") for index in range(2)] == [1, 1]
        assert (await self.member(backend, spec, 0)).exit_code == 143

    async def test_what_ran_and_left_no_trace_is_unknown(self, backend, spec, kubernetes, tmp_path):
        await self.started(backend, spec, tmp_path)
        await self.until_shown(backend, spec, lambda status: all(member.host for member in status.members))
        remove_by_force(kubernetes, spec.name)

        async def is_unknown() -> bool:
            return (await self.member(backend, spec, 0)).cause is Cause.UNKNOWN

        await until(is_unknown, every=self.ASKS_EVERY)

    async def test_a_job_whose_record_is_gone_is_an_orphan(self, backend, spec, kubernetes, tmp_path):
        await self.started(backend, spec, tmp_path)
        kubernetes.request("DELETE", f"{PLACE}/configmaps/{spec.name}")
        assert AttemptStatus(spec.name, ()) in await backend.list_owned()
        await backend.stop(spec.name, 0.0)
        await self.until_cleared(kubernetes, spec)

    async def test_another_installation_is_left_alone(self, backend, spec, kubernetes, tmp_path):
        other = a_backend(kubernetes, installation="other")
        await self.started(other, spec, tmp_path)
        assert spec.name not in [status.name for status in await backend.list_owned()]
        await other.stop(spec.name, 0.0)

    async def test_the_cluster_gets_no_secret(self, kubernetes, spec, tmp_path, monkeypatch):
        for name in SECRETS:
            if not name.lower().endswith("_proxy"):  # the way to the cluster may lead over one
                monkeypatch.setenv(name, "canary")
        backend = a_backend(kubernetes)
        environment = tmp_path / "environment"
        script = f"env > {environment}.draft; mv {environment}.draft {environment}"
        await backend.start(replace(spec, nodes=1, argv=("/bin/sh", "-c", script)))
        await until(environment.exists)
        variables = dict(line.split("=", 1) for line in environment.read_text().splitlines() if "=" in line)
        assert "canary" not in variables.values()
        assert variables["RUNNER_KAFKA_PASSWORD"] == "in the secret"
        assert variables["RUNNER_HOST"] == "127.0.0.1"
        kept = [*jobs_of(kubernetes, spec.name), *pods_of(kubernetes, spec.name)]
        kept.append(kubernetes.request("GET", f"{PLACE}/configmaps/{spec.name}"))
        assert len(kept) == 3
        assert "canary" not in json.dumps(kept)
        assert "in the secret" not in json.dumps(kept)
        assert NODE_KEYS.private(spec.name, 0) not in json.dumps(kept)
        [keys] = secrets_of(kubernetes, spec.name)
        assert list(keys["data"]) == ["0"]
        await backend.stop(spec.name, 0.0)
        assert secrets_of(kubernetes, spec.name) == []

    async def test_what_is_forbidden_is_named_with_the_words_of_kubernetes(
        self, kubernetes, tmp_path, monkeypatch
    ):
        backend = a_backend(kubernetes, namespace="moon")
        with pytest.raises(
            BackendFailed, match=r"POST /api/v1/namespaces/moon/configmaps: 403 .*cannot create"
        ):
            await backend.start(a_spec(tmp_path))
        monkeypatch.setattr(api, "FULL", "cannot create")
        with pytest.raises(NoCapacity):
            await backend.start(a_spec(tmp_path))

    async def test_a_cluster_that_nobody_knows_is_named(self, kubernetes, tmp_path):
        backend = a_backend(kubernetes, kubeconfig=tmp_path / "none")
        with pytest.raises(BackendFailed, match=r"no way to the Kubernetes API by .*/none"):
            await backend.list_owned()

    async def test_the_role_has_what_is_called_and_no_more(self, kubernetes, spec, tmp_path):
        backend = a_backend(kubernetes, retention_days=-1)
        await self.started(backend, spec, tmp_path)
        await backend.notify(spec.name, 0, utc_now() + timedelta(seconds=20))
        await backend.inspect(spec.name)
        await backend.stop(spec.name, 0.0)
        await backend.forget(spec.name)
        events = [json.loads(line) for line in kubernetes.audit.read_text().splitlines()]
        called = {
            (event["objectRef"].get("apiGroup", ""), event["objectRef"]["resource"], event["verb"])
            for event in events
            if "resource" in event.get("objectRef", {}) and event["responseStatus"]["code"] != 403
        }
        rules = [rule for role in yaml.safe_load_all(ROLE.read_text()) for rule in role.get("rules", ())]
        assert called == {
            (group, resource, verb)
            for rule in rules
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    async def until_cleared(self, kubernetes: KubernetesCluster, spec: AttemptSpec) -> None:
        """Once no object of the attempt is left but its record."""
        await until(
            lambda: not any(each(kubernetes, spec.name) for each in LEFT),
            every=self.ASKS_EVERY,
        )
