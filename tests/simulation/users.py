"""What people, tenants and operators ask for, and the ingest that answers for datasets."""

import random
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from schemas.artifacts import DatasetCounts, DatasetFiles
from schemas.base import CommandRefused
from schemas.dataset import DatasetAccepted, DatasetDeleted, DatasetReady, DatasetRejected
from schemas.evaluation import ReevaluateModel
from schemas.gate import BenchmarkRule, GateSpec
from schemas.job import CancelJob, PauseJob, PauseReason, ResumeJob, RetryJob, SubmitJob
from schemas.model import (
    ArchiveModel,
    DeployModel,
    DirectorySource,
    PromoteModel,
    RegisterBaseModel,
    RollbackDeployment,
    UndeployModel,
)
from schemas.node import DrainNode, LeaseDevices, NodeLost, PreemptNode, ReturnDevices, SetPoolCapacity
from schemas.specification import JobSpec, Recipe, Resources, StageSpec
from tests.builders import a_file_ref, a_sha

if TYPE_CHECKING:
    from tests.simulation.world import World

TENANTS = ("acme", "umbra")
BASE = "tiny"
LATER_STAGE = StageSpec(recipe=Recipe(method="dpo"), training_file=a_file_ref())
CAPACITY = {"spot": 4, "steady": 3}


class Users:
    def __init__(self, world: "World") -> None:
        self.world = world
        self._rng = world.rng
        self.jobs: dict[str, str] = {}
        """Tenant by job."""
        self._bases = 1
        self._leases: list[LeaseDevices] = []
        """Leases of services that may still be extended or given back."""

    def begin(self) -> None:
        self.register_base(1)

    def register_base(self, number: int) -> None:
        source = DirectorySource(path=f"base-{number}")
        self.world.send(RegisterBaseModel(name=BASE, source=source), writer="admin")

    def submit(
        self,
        *,
        nodes: int | None = None,
        dataset: str | None = None,
        after: float | None = None,
        later: int = 0,
    ) -> str:
        """A job with its datasets; `dataset`: their fate, `after`: seconds; chosen where they are not given.

        later: stages after the first; chosen where `nodes` is.
        """
        rng = self._rng
        job_id = f"job-{len(self.jobs) + 1}"
        tenant = rng.choice(TENANTS)
        self.jobs[job_id] = tenant
        spec = JobSpec(
            base_model=BASE,
            base_sha=a_sha("base-1"),
            recipe=Recipe(seed=rng.randint(0, 2)),
            resources=Resources(
                nodes=nodes or rng.choice((1, 1, 2, 3)),
                capacity_type=rng.choice(("spot-first", "spot", "on-demand"))
                if nodes is None
                else "spot-first",
                grace_seconds=rng.choice((10.0, 30.0, 120.0)),
            ),
            gate=rng.choice((GateSpec(), GateSpec(benchmarks=BenchmarkRule(margin_points=1.0)))),
            training_file=a_file_ref(),
            suffix="s",
            auto_deploy=rng.random() < 0.8,
        )
        dataset_id = f"ds-{job_id}"
        # Not from the world's numbers: jobs without stages go as they did before there were any.
        own = random.Random(f"{self.world.seed} {job_id}")
        num_later = own.choice((0, 0, 0, 1, 2)) if nodes is None else later
        if nodes is None:
            asked = {"devices_per_node": own.choice((1, 1, 2))}
            if spec.resources.nodes > 1 and own.random() < 0.7:
                asked["min_nodes"] = 1
            resources = spec.resources.model_copy(update=asked)
            spec = spec.model_copy(update={"resources": resources})
        later_ids = tuple(f"{dataset_id}-{number}" for number in range(num_later))
        spec = spec.model_copy(update={"later_stages": (LATER_STAGE,) * num_later})
        command = SubmitJob(
            job_id=job_id, tenant=tenant, dataset_id=dataset_id, later_dataset_ids=later_ids, spec=spec
        )
        self.world.send(command, writer="gateway")
        after = rng.choice((0.01, 5.0, 40.0)) if after is None else after
        fate = dataset or rng.choice(("ready",) * 8 + ("rejected", "refused"))
        for each in (dataset_id, *later_ids):
            self.make_dataset(each, tenant, fate, after=after)
        return job_id

    def make_dataset(self, dataset_id: str, tenant: str, fate: str, *, after: float) -> None:
        """As ingest would."""
        world, rng = self.world, self._rng
        who = {"dataset_id": dataset_id, "tenant": tenant}
        if fate == "refused":
            refusal = CommandRefused(
                subject_id=dataset_id, command="SubmitDataset", command_id="c", code="no", message="no",
                tenant=tenant,
            )  # fmt: skip
            world.clock.after(rng.uniform(0, 5), lambda: world.send(refusal, writer="ingest"))
            return
        accepted = DatasetAccepted(**who, base_sha=a_sha("base-1"))
        answer = DatasetRejected(**who, code="empty", message="no rows")
        if fate == "ready":
            answer = DatasetReady(
                **who, dataset_version=a_sha("dataset"), manifest_sha256=a_sha("m"), base_sha=a_sha("base-1"),
                template_sha256=a_sha("template"), benchmarks={"bench": a_sha("bench")},
                counts=DatasetCounts(rows=2000, windows=40, tokens=90_000, loss_tokens=40_000),
                suites={"safety": a_sha("safety")}, files=DatasetFiles(training=a_file_ref().sha256),
            )  # type: ignore[assignment] # fmt: skip
        at = rng.uniform(0, 2)
        world.clock.after(at, lambda: world.send(accepted, writer="ingest"))
        world.clock.after(at + after, lambda: world.send(answer, writer="ingest"))

    def delete_dataset(self, job_id: str) -> None:
        """Its attempt may run on it."""
        tenant = self.jobs[job_id]
        fact = DatasetDeleted(
            dataset_version=a_sha(f"dataset {job_id}"), tenant=tenant, dataset_ids=(f"ds-{job_id}",)
        )
        self.world.send(fact, writer="ingest")

    # Commands about a job.

    def cancel(self, job_id: str, *, reason: Literal["user", "budget"] | None = None) -> None:
        reason = reason or self._rng.choice(("user", "budget"))
        self.world.send(CancelJob(job_id=job_id, tenant=self.jobs[job_id], reason=reason), writer="gateway")

    def pause(self, job_id: str) -> None:
        reason = self._rng.choice(list(PauseReason))
        self.world.send(PauseJob(job_id=job_id, tenant=self.jobs[job_id], reason=reason), writer="gateway")

    def resume(self, job_id: str) -> None:
        self.world.send(ResumeJob(job_id=job_id, tenant=self.jobs[job_id]), writer="gateway")

    def retry(self, job_id: str) -> None:
        new, tenant = f"job-{len(self.jobs) + 1}", self.jobs[job_id]
        self.jobs[new] = tenant
        self.world.send(RetryJob(job_id=job_id, tenant=tenant, new_job_id=new), writer="gateway")

    def preempt(self, job_id: str, *, notice_seconds: float | None = None) -> None:
        seconds = self._rng.choice((0.0, 2.0, 30.0, 120.0)) if notice_seconds is None else notice_seconds
        self.world.send(PreemptNode(node_id=f"job:{job_id}", notice_seconds=seconds), writer="admin")

    def drain(self, job_id: str) -> None:
        self.world.send(DrainNode(node_id=f"job:{job_id}"), writer="admin")

    # Commands about capacity, models and slots.

    def resize(self, capacity: Mapping[str, int]) -> None:
        for pool, nodes in capacity.items():
            self.world.send(SetPoolCapacity(pool=pool, nodes=nodes), writer="admin")

    def lease(self, rng: random.Random) -> None:
        """As scoring and serving do: ask for devices, extend the lease or give it back, and at times forget it."""
        deed = rng.choice(("ask", "ask", "extend", "return", "forget")) if self._leases else "ask"
        if deed == "ask":
            self._ask(f"lease-{rng.getrandbits(32)}", rng.choice(list(CAPACITY)), rng.choice((1, 1, 2)), rng)
            return
        lease = rng.choice(self._leases)
        if deed == "extend":
            self._ask(lease.lease_id, lease.pool, lease.devices, rng)
            return
        self._leases.remove(lease)
        if deed == "return":
            self.world.send(ReturnDevices(lease_id=lease.lease_id), writer=lease.holder)

    def _ask(self, lease_id: str, pool: str, devices: int, rng: random.Random) -> None:
        holder, purpose = rng.choice((("evaluator", "scoring"), ("serving_controller", "serving")))
        command = LeaseDevices(
            lease_id=lease_id,
            holder=holder,
            purpose=purpose,
            pool=pool,
            devices=devices,
            until=self.world.clock.utc + timedelta(seconds=rng.uniform(20, 200)),
        )
        self._leases = [each for each in self._leases if each.lease_id != lease_id] + [command]
        self.world.send(command, writer=holder)

    def drift(self) -> None:
        """The base model's name points to other files, or back to the first ones."""
        self._bases += 1
        self.register_base(self._bases if self._rng.random() < 0.5 else 1)

    def about_a_model(self) -> None:
        """Promote, deploy, archive … what the registry has."""
        versions = list(self.world.kernels["registry"].tables.rows("version"))
        if not versions:
            return
        version = self._rng.choice(versions)
        who = {"model_id": version.model_id, "tenant": version.tenant}
        slot = {"slot": self._rng.choice((version.full_name, "prod")), "tenant": version.tenant}
        command = self._rng.choice(
            (
                PromoteModel(**who, approved_by="someone"),
                PromoteModel(**who, approved_by="someone", accept_without_holdout=True, reason="simulated"),
                DeployModel(**who, slot=slot["slot"]),
                DeployModel(**who, slot="prod"),
                RollbackDeployment(**slot),
                UndeployModel(**slot),
                ReevaluateModel(**who),
                ArchiveModel(**who) if self._rng.random() < 0.2 else RollbackDeployment(**slot),
            )
        )
        self.world.send(command, writer="admin")

    def hostile(self) -> None:
        """Facts about a job that there is not, the second time with a gap in their story."""
        for step in (1, 3):
            fact = NodeLost(job_id="ghost", tenant="acme", attempt=1, node_id="n", message="forged")
            sent = self.world.send(fact, writer="provisioner", skip=step - 1)
            self.world.checker.hostile.add(sent)

    def act(self) -> None:
        """Something, at random."""
        rng = self._rng
        job_id = self._some_job()
        kind = rng.random()
        if kind < 0.15:
            self.about_a_model()
        elif kind < 0.18:
            rng.choice(
                (
                    self.drift,
                    self.hostile,
                    lambda: self.delete_dataset(job_id),
                    lambda: self.resize({rng.choice(list(CAPACITY)): rng.randint(0, 5)}),
                )
            )()
        else:
            rng.choice(
                (
                    self.cancel,
                    self.pause,
                    self.resume,
                    self.resume,
                    self.retry,
                    self.preempt,
                    self.preempt,
                    self.drain,
                )
            )(job_id)

    def _some_job(self) -> str:
        return self._rng.choice(list(self.jobs))
