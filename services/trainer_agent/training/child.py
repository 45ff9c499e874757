"""One order, carried out; whatever happens, the last report says how it ended."""

import logging
from pathlib import Path

from services.trainer_agent.protocol import Ended, Outcome, TrainingOrder
from services.trainer_agent.training.device import on_ordered_device
from services.trainer_agent.training.distributed import World, joined
from services.trainer_agent.training.failures import classify, describe, is_of_peer
from services.trainer_agent.training.loop import train
from services.trainer_agent.training.reports import Reports
from services.trainer_agent.training.setup import compare, prepare
from services.trainer_agent.training.stop import StopRequest
from shared.processes.orders import ORDER, read_order

log = logging.getLogger(__name__)


def run_child(work_dir: Path, world: World, stop: StopRequest) -> Outcome:
    """Carry out the order in `work_dir`; its end, also by an error, is the last report."""
    reports = Reports(work_dir, world)
    try:
        order = read_order(work_dir / ORDER, TrainingOrder)
        world = on_ordered_device(world, order.device)
        with joined(world, even_alone=order.recipe.sharded.library == "deepspeed"):
            run, resumed = prepare(order, work_dir, world, reports)
            compare(run, resumed, stop)
            outcome = train(run, stop, resumed)
            reason = stop.reason if outcome is Outcome.STOPPED else run.why_early
            reports.end(Ended(outcome=outcome, message=reason, last_step=reports.last_step))
    except Exception as error:
        log.exception("training failed")
        failure = Ended(
            outcome=Outcome.FAILED,
            failure_class=classify(error),
            message=describe(error),
            lost_connection=is_of_peer(error),
            last_step=reports.last_step,
        )
        reports.end(failure)
        return Outcome.FAILED
    return outcome
