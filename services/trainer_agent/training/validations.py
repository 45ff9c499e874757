"""What validation has shown of a run, and what follows from it: which step is the best, and whether to train on."""

from math import isfinite

from schemas.base import Count, Step, Value
from schemas.specification import EarlyStoppingSpec


class Validations(Value):
    """All that a run must remember of its validations; part of every bundle."""

    step: Step | None = None
    """Step of the newest validation; None: there was none yet."""
    best_step: Step | None = None
    """Step at which the loss was the lowest, the first of several; None while no loss was a finite number."""
    best_loss: float | None = None
    improved_loss: float | None = None
    """Loss at the last improvement, which the next one must be below by more than `min_delta`."""
    without_improvement: Count = 0
    """Number of validations in a row since the last improvement."""

    def after(self, step: int, loss: float, early_stopping: EarlyStoppingSpec | None) -> "Validations":
        """Add a validation. A loss that is not a finite number improves nothing."""
        is_best = isfinite(loss) and (self.best_loss is None or loss < self.best_loss)
        min_delta = early_stopping.min_delta if early_stopping else 0.0
        is_improvement = isfinite(loss) and (
            self.improved_loss is None or loss < self.improved_loss - min_delta
        )
        return Validations(
            step=step,
            best_step=step if is_best else self.best_step,
            best_loss=loss if is_best else self.best_loss,
            improved_loss=loss if is_improvement else self.improved_loss,
            without_improvement=0 if is_improvement else self.without_improvement + 1,
        )

    def ends(self, early_stopping: EarlyStoppingSpec | None) -> bool:
        """Return whether the loss has not improved for too long."""
        return early_stopping is not None and self.without_improvement >= early_stopping.patience

    def is_due(self, step: int, *, every: int, num_steps: int) -> bool:
        """Return whether to validate: every so many steps, and after the last one."""
        return step > 0 and self.step != step and (step % every == 0 or step == num_steps)

    def reason(self, early_stopping: EarlyStoppingSpec | None, *, num_steps: int) -> str:
        """Return why the run ended before its last step, for people; empty where it did not."""
        if not self.ends(early_stopping) or self.step == num_steps:
            return ""
        assert early_stopping is not None, "only early stopping ends a run"
        below = "a finite number" if self.improved_loss is None else f"below {self.improved_loss:.4f}"
        by = f" by more than {early_stopping.min_delta:g}" if early_stopping.min_delta else ""
        return (
            f"ended early at step {self.step} of {num_steps}: in {self.without_improvement} validations in a row the "
            f"loss was not {below}{by}"
        )


NO_VALIDATIONS = Validations()
