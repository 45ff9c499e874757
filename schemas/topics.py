"""Every topic: who writes it and what it carries. Who listens follows from the services' handlers (`handled.py`).

Rights in Kafka and documents follow from both.
"""

from dataclasses import dataclass

from schemas import (
    access,
    alert,
    checkpoint,
    cost,
    dataset,
    deployment,
    evaluation,
    job,
    model,
    node,
    parked,
    sweep,
    training,
)
from schemas.base import CommandRefused, Delayed, Message
from schemas.handled import HANDLED

SERVICES = (
    "gateway",
    "ingest",
    "scheduler",
    "provisioner",
    "trainer_agent",
    "checkpoint_watcher",
    "evaluator",
    "registry",
    "serving_controller",
    "tracker",
    "accounts",
    "auditor",
)
READERS = ("auditor",)
"""Services that read topics as they are, in no group, and write none."""

DEFAULT_PARTITIONS = 3


@dataclass(frozen=True)
class Topic:
    """A Kafka topic. The key of a record is the id of the aggregate that the message is about."""

    name: str
    writers: tuple[str, ...]
    messages: tuple[type[Message], ...]
    partitions: int = DEFAULT_PARTITIONS
    retention_days: int = 30

    @property
    def is_event_stream(self) -> bool:
        """Whether it carries facts of aggregates, numbered by `ce_sequence`."""
        return self.name.endswith((".events", ".alerts"))

    @property
    def is_commands(self) -> bool:
        """Whether it carries requests, which may be refused."""
        return self.name.endswith(".commands")

    @property
    def has_outside_writers(self) -> bool:
        """Whether tenants' programs or nodes write it, and not services and operators alone."""
        return self.tenant is not None or "runner" in self.writers

    @property
    def tenant(self) -> str | None:
        """The tenant whose own topic this is; what its messages claim does not count. None for other topics."""
        family, _, rest = self.name.partition(".")
        return rest.removesuffix(".commands") if family == "tenant" and self.is_commands else None

    @property
    def is_copy(self) -> bool:
        """Whether its records were copied from other topics: their source is not who wrote them here."""
        return self.name.startswith("tenant.") and self.is_event_stream and self.name != TENANT_EVENTS.name


DATASET_COMMANDS = Topic(
    "dataset.commands", ("gateway", "admin"), (dataset.SubmitDataset, dataset.DeleteDataset)
)
JOB_COMMANDS = Topic(
    "job.commands",
    ("gateway", "admin", "tracker"),
    (job.SubmitJob, job.CancelJob, job.PauseJob, job.ResumeJob, job.RetryJob, job.LimitDevices),
)
MODEL_COMMANDS = Topic(
    "model.commands",
    ("gateway", "admin"),
    (
        model.RegisterBaseModel,
        model.PromoteModel,
        model.ArchiveModel,
        model.DeployModel,
        model.RollbackDeployment,
        model.UndeployModel,
        model.ExportModel,
        model.DeleteExport,
        model.DeleteModel,
        model.RegisterArtifact,
    ),
)
EVAL_COMMANDS = Topic(
    "eval.commands",
    ("gateway", "admin"),
    (evaluation.RegisterBenchmark, evaluation.RegisterSafetySuite, evaluation.ReevaluateModel),
)
SWEEP_COMMANDS = Topic("sweep.commands", ("gateway", "admin"), (sweep.SubmitSweep, sweep.CancelSweep))
NODE_COMMANDS = Topic(
    "node.commands",
    ("admin",),
    (node.CordonMachine, node.DrainNode, node.PreemptNode, node.SetPoolCapacity, node.UncordonMachine),
)
# Apart from node.commands: who leases devices may not take nodes or pools from others.
LEASE_COMMANDS = Topic(
    "lease.commands",
    ("evaluator", "serving_controller"),
    (node.LeaseDevices, node.ReturnDevices),
    retention_days=7,
)
DEPLOYMENT_COMMANDS = Topic(
    "deployment.commands",
    ("evaluator", "gateway"),
    (deployment.LoadCandidate, deployment.UnloadCandidate, deployment.UseAdapters),
    retention_days=7,
)
ALERT_COMMANDS = Topic("alert.commands", ("gateway", "admin"), (alert.MuteAlerts, alert.UnmuteAlerts))
COST_COMMANDS = Topic("cost.commands", ("gateway", "admin"), (cost.LimitSpending,))
ACCESS_COMMANDS = Topic(
    "access.commands",
    ("gateway",),
    (access.AddTenantUser, access.AddSubscriber, access.RotateKafkaUser, access.RemoveKafkaUser),
)
PARKED_COMMANDS = Topic("parked.commands", ("admin",), (parked.ReplayParked, parked.DropParked), partitions=1)

DATASET_EVENTS = Topic(
    "dataset.events",
    ("ingest",),
    (
        dataset.DatasetAccepted,
        dataset.DatasetReady,
        dataset.DatasetRejected,
        dataset.DatasetDeleted,
        Delayed,
        CommandRefused,
    ),
)
JOB_EVENTS = Topic(
    "job.events",
    ("scheduler",),
    (
        job.JobSubmitted,
        job.JobQueued,
        job.JobScheduled,
        job.JobRunning,
        job.JobStopping,
        job.JobPaused,
        job.JobRequeued,
        job.JobStageCompleted,
        job.JobEvaluating,
        job.JobSucceeded,
        job.JobFailed,
        job.JobCancelled,
        CommandRefused,
    ),
)
QUEUE_EVENTS = Topic("queue.events", ("scheduler",), (job.QueuePositionChanged,), retention_days=7)
NODE_EVENTS = Topic(
    "node.events",
    ("provisioner",),
    (
        node.NodesQueued,
        node.NodesProvisioned,
        node.ProvisioningFailed,
        node.NodePreempted,
        node.NodeLost,
        node.NodesReleased,
        node.PoolCapacityChanged,
        node.MachineCordoned,
        node.MachineUncordoned,
        node.DevicesLeased,
        node.DeviceLeaseQueued,
        node.DeviceLeaseEnded,
        CommandRefused,
    ),
)
AGENT_DIRECTIVES = Topic(
    "agent.directives", ("trainer_agent",), (training.StartTraining, training.StopTraining), retention_days=7
)
AGENT_REPORTS = Topic(
    "agent.reports",
    ("runner",),
    (
        training.RunnerStarted,
        training.RunnerHeartbeat,
        training.RunnerPrepared,
        training.StepReached,
        training.BundleUploaded,
        training.RunnerStopped,
    ),
    retention_days=7,
)
TRAINING_EVENTS = Topic(
    "training.events",
    ("trainer_agent",),
    (
        training.TrainingStarted,
        training.TrainingPrepared,
        training.TrainingResumed,
        training.CheckpointWritten,
        training.TrainingStopped,
        training.TrainingCompleted,
        training.TrainingFailed,
    ),
)
RUN_METRICS = Topic("run.metrics", ("runner",), (training.StepsRecorded,), retention_days=7)
CHECKPOINT_EVENTS = Topic(
    "checkpoint.events",
    ("checkpoint_watcher",),
    (
        checkpoint.CheckpointVerified,
        checkpoint.CheckpointCorrupt,
        checkpoint.CheckpointExpired,
        checkpoint.CheckpointOverdue,
    ),
)
EVAL_EVENTS = Topic(
    "eval.events",
    ("evaluator",),
    (
        evaluation.EvalStarted,
        evaluation.EvalProgressed,
        evaluation.EvalCheckCompleted,
        evaluation.EvalPassed,
        evaluation.EvalFailed,
        evaluation.EvalInconclusive,
        evaluation.BaselineRecorded,
        evaluation.BenchmarkRegistered,
        evaluation.SafetySuiteRegistered,
        evaluation.GatePolicyPublished,
        Delayed,
        CommandRefused,
    ),
)
MODEL_EVENTS = Topic(
    "model.events",
    ("registry",),
    (
        model.BaseModelRegistered,
        model.ModelRegistered,
        model.ModelPromoted,
        model.ModelDemoted,
        model.PromotionRefused,
        model.ModelArchived,
        model.ModelExportStarted,
        model.ModelExportProgressed,
        model.ModelExported,
        model.ModelExportFailed,
        model.ModelExportDeleted,
        model.AdaptersStale,
        model.DeploymentApproved,
        model.DeploymentWithdrawn,
        Delayed,
        CommandRefused,
    ),
)
DEPLOYMENT_EVENTS = Topic(
    "deployment.events",
    ("serving_controller",),
    (
        deployment.ReplicaReady,
        deployment.ReplicaLost,
        deployment.AdapterLoaded,
        deployment.CandidateReady,
        deployment.DeploymentReady,
        deployment.DeploymentIdle,
        deployment.DeploymentFailed,
        deployment.DeploymentStopped,
        deployment.DeploymentRolledBack,
        CommandRefused,
    ),
)
RUN_ALERTS = Topic(
    "run.alerts",
    ("tracker",),
    (alert.AlertRaised, alert.AlertCleared, alert.AlertsMuted, alert.AlertsUnmuted),
)
SWEEP_EVENTS = Topic(
    "sweep.events",
    ("tracker",),
    (
        sweep.SweepSubmitted,
        sweep.TrialSubmitted,
        sweep.TrialEnded,
        sweep.TrialChosen,
        sweep.SweepStopping,
        sweep.SweepEnded,
        CommandRefused,
    ),
)
COST_EVENTS = Topic("cost.events", ("tracker",), (cost.CostAccrued, cost.BudgetReached))
ACCESS_EVENTS = Topic(
    "access.events",
    ("accounts",),
    (access.TenantOpened, access.KafkaUserReady, access.KafkaUserRemoved, CommandRefused),
)
TENANT_EVENTS = Topic("tenant.events", ("gateway",), (CommandRefused,))
"""Refusals of what came in on `tenant.<t>.commands`."""

PARKED_TOPICS = {
    service: Topic(
        f"parked.{service}",
        (service,),
        (parked.MessageParked, parked.ParkedResolved, CommandRefused),
        partitions=1,
        retention_days=90,
    )
    for service in SERVICES
    if service not in READERS
}

TOPICS: tuple[Topic, ...] = (
    DATASET_COMMANDS,
    JOB_COMMANDS,
    MODEL_COMMANDS,
    EVAL_COMMANDS,
    SWEEP_COMMANDS,
    NODE_COMMANDS,
    LEASE_COMMANDS,
    DEPLOYMENT_COMMANDS,
    ALERT_COMMANDS,
    COST_COMMANDS,
    ACCESS_COMMANDS,
    PARKED_COMMANDS,
    DATASET_EVENTS,
    JOB_EVENTS,
    QUEUE_EVENTS,
    NODE_EVENTS,
    AGENT_DIRECTIVES,
    AGENT_REPORTS,
    TRAINING_EVENTS,
    RUN_METRICS,
    CHECKPOINT_EVENTS,
    EVAL_EVENTS,
    MODEL_EVENTS,
    DEPLOYMENT_EVENTS,
    RUN_ALERTS,
    SWEEP_EVENTS,
    COST_EVENTS,
    ACCESS_EVENTS,
    TENANT_EVENTS,
    *PARKED_TOPICS.values(),
)

LISTENS: dict[str, tuple[Topic, ...]] = {
    service: tuple(topic for topic in TOPICS if topic.name in HANDLED.get(service, {}))
    for service in SERVICES
}
"""Topics of which a service handles at least one type."""

OF_EVERY_TENANT = "tenant.*.commands"
"""Name for all topics that tenants' own producers write, whatever tenants there are."""


def listens_to_tenants(service: str) -> bool:
    """Return whether the service handles what tenants' own producers write."""
    return OF_EVERY_TENANT in HANDLED.get(service, {})


TENANT_COMMAND_TYPES: tuple[type[Message], ...] = (
    dataset.SubmitDataset,
    dataset.DeleteDataset,
    job.SubmitJob,
    job.CancelJob,
    job.PauseJob,
    job.ResumeJob,
    job.RetryJob,
    model.PromoteModel,
    model.ArchiveModel,
    model.DeployModel,
    model.RollbackDeployment,
    model.UndeployModel,
    evaluation.ReevaluateModel,
)


TENANT_FACT_TYPES: tuple[type[Message], ...] = tuple(
    dict.fromkeys(
        message
        for topic in TOPICS
        if topic.is_event_stream
        for message in topic.messages
        if "tenant" in message.model_fields or message is model.AdaptersStale
    )
)
"""Facts that name the tenant whom they are about, and that a base model's files changed."""


def tenant_commands(tenant: str) -> Topic:
    """Return the one topic that a tenant's own producers may write; the gateway listens."""
    return Topic(f"tenant.{tenant}.commands", (access.tenant_user(tenant),), TENANT_COMMAND_TYPES)


def tenant_events(tenant: str) -> Topic:
    """Return the topic with every fact about what the tenant has, which the gateway copies for its consumers."""
    return Topic(f"tenant.{tenant}.events", ("gateway",), TENANT_FACT_TYPES)


def tenant_topics(tenant: str) -> tuple[Topic, ...]:
    """Return both topics of a tenant, its commands and its events."""
    return tenant_commands(tenant), tenant_events(tenant)


def is_audited(name: str) -> bool:
    """Return whether a hash chain covers the topic: a tenant's commands, and all declared but what may be lost."""
    is_tenants = name.startswith("tenant.") and name.endswith(".commands")
    return is_tenants or (name in {topic.name for topic in TOPICS} and name != RUN_METRICS.name)


def refusals_of(service: str) -> Topic:
    """Return the events topic on which a service reports that it refused a command."""
    return next(topic for topic in TOPICS if CommandRefused in topic.messages and service in topic.writers)


def topic_of(message: type[Message], *, writer: str) -> Topic:
    """Return the one topic on which `writer` sends this message. Raises LookupError."""
    for topic in TOPICS:
        if message in topic.messages and writer in topic.writers:
            return topic
    raise LookupError(f"{writer} writes no topic that carries {message.type}")


def topic_carrying(message: type[Message]) -> Topic:
    """Return the one topic that carries this message. Raises LookupError."""
    carriers = [topic for topic in TOPICS if message in topic.messages]
    if len(carriers) != 1:
        names = ", ".join(topic.name for topic in carriers) or "none"
        raise LookupError(f"topic of {message.type}: found {names}, expected one; name the topic")
    return carriers[0]


def message_type(topic: Topic, name: str) -> type[Message] | None:
    """Return the message of that name on that topic; None where the topic does not carry it."""
    return next((message for message in topic.messages if message.type == name), None)
