"""One handler per message, and the two kinds of long work: checking a suite's file and running the gate."""

from schemas.base import CommandRefused
from schemas.deployment import CandidateReady, ReplicaLost, ReplicaReady
from schemas.evaluation import ReevaluateModel, RegisterBenchmark, RegisterSafetySuite
from schemas.job import JobCancelled, JobEvaluating
from schemas.model import ModelArchived, ModelRegistered, PromotionRefused
from schemas.node import PoolCapacityChanged
from schemas.sweep import TrialChosen
from schemas.topics import DEPLOYMENT_EVENTS
from services.evaluator import protocol
from services.evaluator.clients.child import ScoringChild
from services.evaluator.clients.files import Cache
from services.evaluator.clients.judge_panel import JudgePanel
from services.evaluator.handlers import evaluations, policy, pools, replicas
from services.evaluator.handlers.answers import Answers
from services.evaluator.handlers.devices import Devices
from services.evaluator.handlers.evaluations import RunGate
from services.evaluator.handlers.gate import Gate
from services.evaluator.handlers.nodes import NodeScoring, ScoringRoutes
from services.evaluator.handlers.scoring import LocalScoring, Scoring
from services.evaluator.handlers.suites import CheckSuite, SuiteRegistration
from services.evaluator.settings import Settings
from shared.device_leases import holder
from shared.nodes.requests import MAX_BODY_BYTES
from shared.replica_http import replica_client
from shared.service import Service


def register(service: Service, settings: Settings) -> None:
    cache = Cache(service.objects, settings.scratch_dir, max_bytes=settings.scratch_bytes)
    registration = SuiteRegistration(cache)
    service.on(RegisterBenchmark, registration.register_benchmark)
    service.on(RegisterSafetySuite, registration.register_safety_suite)
    service.on_task(
        CheckSuite, work=registration.check, done=registration.checked, failed=registration.refused
    )

    service.on_start(lambda: policy.publish(service, settings))

    service.on(JobEvaluating, evaluations.job_evaluating)
    service.on(TrialChosen, evaluations.evaluate_artifact)
    service.on(JobCancelled, evaluations.job_cancelled)
    service.on(ModelRegistered, evaluations.model_registered)
    service.on(ModelArchived, evaluations.model_archived)
    service.on(PromotionRefused, evaluations.promotion_refused)
    service.on(ReevaluateModel, evaluations.reevaluate)

    service.on(ReplicaReady, replicas.replica_ready)
    service.on(ReplicaLost, replicas.replica_lost)
    service.on(CandidateReady, replicas.candidate_ready)
    service.on(CommandRefused, replicas.command_refused, topic=DEPLOYMENT_EVENTS)

    holder.listen(service)
    service.on(PoolCapacityChanged, pools.pool_changed)

    devices = Devices(service, settings.leases, device=settings.device)
    scoring = (_on_nodes if settings.on_nodes else _local)(service, settings, cache, devices)
    gate = Gate(service, settings, cache=cache, scoring=scoring, judge_panel=JudgePanel(settings))
    service.on_task(
        RunGate,
        work=gate.run,
        done=gate.ended,
        failed=gate.given_up,
        attempts=settings.scoring_attempts,
        concurrency=settings.gates_at_once,
        waits=gate.waits,
    )


def _local(service: Service, settings: Settings, cache: Cache, devices: Devices) -> Scoring:
    http = replica_client(settings.tls)
    service.on_stop(http.aclose)
    child = ScoringChild(
        threads=settings.scoring_threads, silence=settings.scoring_silence, limit=settings.scoring_limit
    )
    return LocalScoring(cache, child, devices=devices, answers=Answers(service, settings, http))


def _on_nodes(service: Service, settings: Settings, cache: Cache, devices: Devices) -> Scoring:
    routes = ScoringRoutes(service, settings)
    service.on_post(protocol.REPORT_ROUTE, routes.report, max_bytes=MAX_BODY_BYTES)
    service.on_post(protocol.OBJECTS_ROUTE, routes.objects, max_bytes=MAX_BODY_BYTES)
    return NodeScoring(service, settings, objects=service.objects, cache=cache, devices=devices)
