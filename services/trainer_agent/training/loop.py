"""The training loop. Whatever ranks must do together is decided by all of them: to save at a step boundary, to stop
between micro batches.
"""

from services.trainer_agent.protocol import BundleKind, Outcome, Saved
from services.trainer_agent.training.resume import Bundle
from services.trainer_agent.training.run import Run
from services.trainer_agent.training.saver import Saver
from services.trainer_agent.training.step import take_step
from services.trainer_agent.training.stop import StopRequest
from services.trainer_agent.training.validation import metrics_at_end, metrics_now, validate
from shared.failpoints import failpoint


def train(run: Run, stop: StopRequest, resumed: Bundle | None) -> Outcome:
    """Train to the last step or to a stop. Either way the newest state is in a reported bundle at the end."""
    if run.step == 0 and run.objective.measures_start:
        run.start_valid_loss = metrics_now(run, stop, full=True).full_valid_loss
    saver = Saver(run)
    while not run.has_ended:
        # The clock of one rank decides for all.
        is_due = run.world.rank == 0 and saver.is_due
        stopping, due, writing = run.world.highest([stop.is_there, is_due, saver.is_writing])
        if stopping:
            break
        if run.validation_is_due:
            if not validate(run, stop):
                break
            continue
        if saver.is_busy and (saver.lacks_best or not writing):
            saver.finish()
        if (due or saver.lacks_best) and not saver.is_busy:
            saver.begin(BundleKind.PERIODIC)
            saver.attach(run.measured_here or metrics_now(run, stop, full=False))
        stepped = take_step(run, stop)
        if stepped is None:
            break
        run.reports.send(stepped)
        failpoint("trainer.step.end")
    _save_last(run, stop, saver, resumed)
    return Outcome.COMPLETED if run.has_ended else Outcome.STOPPED


def _save_last(run: Run, stop: StopRequest, saver: Saver, resumed: Bundle | None) -> None:
    kind = BundleKind.FINAL if run.has_ended else BundleKind.EMERGENCY
    start = resumed.state.validations.step if resumed else None
    if run.step > run.start_step or run.validations.step != start:
        saver.begin_last(kind)
        # Meanwhile, since validation may take longer than a notice leaves. A stop has no time for it.
        if run.has_ended:
            saver.attach(run.measured_here or metrics_at_end(run, stop))
        saver.finish()
    elif resumed is not None:
        run.reports.send(
            Saved(
                step=run.step,
                bundle=kind,
                directory=resumed.directory,
                parts=(),
                all_parts=resumed.manifest.parts if run.world.rank == 0 else (),
                reused=True,
            )
        )
