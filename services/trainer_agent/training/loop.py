"""The training loop. Everything that ranks must do together is decided at a step boundary by all of them."""

from services.trainer_agent.protocol import BundleKind, Outcome, Saved
from services.trainer_agent.training.resume import Bundle
from services.trainer_agent.training.run import Run
from services.trainer_agent.training.saver import Saver
from services.trainer_agent.training.step import take_step
from services.trainer_agent.training.stop import StopWish
from services.trainer_agent.training.validation import metrics_now
from shared.failpoints import failpoint


def train(run: Run, stop: StopWish, resumed: Bundle | None) -> Outcome:
    """Train to the last step or to a stop. Either way the newest state is in a reported bundle at the end."""
    saver = Saver(run)
    while not run.is_complete:
        # The clock of one rank decides for all.
        is_due = run.world.rank == 0 and saver.is_due
        stopping, due, writing = run.world.highest([stop.is_there, is_due, saver.is_writing])
        if stopping:
            break
        if saver.is_busy and not writing:
            saver.finish()
        if due and not saver.is_busy:
            saver.begin(BundleKind.PERIODIC, metrics_now(run, full=False))
        run.reports.send(take_step(run))
        failpoint("trainer.step.end")
    if saver.is_busy:
        saver.finish()
    _save_last(run, saver, resumed)
    return Outcome.COMPLETED if run.is_complete else Outcome.STOPPED


def _save_last(run: Run, saver: Saver, resumed: Bundle | None) -> None:
    kind = BundleKind.FINAL if run.is_complete else BundleKind.EMERGENCY
    if run.step > run.start_step:
        # A stop has a deadline: no time for validation.
        saver.begin(kind, metrics_now(run, full=True) if run.is_complete else {})
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
