"""Seconds from a process's start to the end of its first step: of a new run, and of one that continues after a kill.

`python -m bench.training.starts` trains 40,160 rows, four a step, by each side for once, and has a checkpoint at step
10 and one at step 10,000. Then both sides start in turns: from the base, and from each checkpoint. The first loss of
a start must be the very loss that the whole run has there, on both sides. The peer is TRL's SFTTrainer with PEFT, by
the script `bench.training.starts_peer`, which gets rows that are tokens already.

Twenty more runs of ours continue from step 10,000, are killed with SIGKILL at a drawn moment, and continue once more
from the newest checkpoint that was reported: the bytes of each one's model are compared with the whole run's.
"""

import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import report
from bench.training.starts_inputs import BATCH_ROWS, NUM_ROWS, NUM_STEPS, SEED, make, the_recipe
from bench.training.starts_peer import write_rows
from services.trainer_agent.protocol import Saved, Stepped, TrainingOrder
from tests.training.jobs import (
    Inputs,
    an_order,
    as_bundle,
    end_all,
    environment,
    model_sha256,
    reports_in,
    reports_of,
    start_child,
    wait_for_exit,
    wait_for_step,
)

ROUNDS = 5
KILLS = 20
NEW, EARLY, LATE = 0, 10, 10_000
STARTS = (NEW, EARLY, LATE)
"""The step that a start continues after."""


@dataclass(frozen=True)
class Start:
    seconds: float
    loss: float


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        inputs = Path(scratch) / "inputs"
        ours, peer = Ours(Path(scratch), Inputs(*make(inputs))), Peer(Path(scratch), inputs)
        times: dict[str, dict[int, list[float]]] = {
            side: {step: [] for step in STARTS} for side in ("ours", "trl")
        }
        for number in range(ROUNDS):
            for step in STARTS:
                for name, side in (("ours", ours), ("trl", peer)):
                    began = side.start(step)
                    if began.loss != side.losses[step + 1]:
                        raise SystemExit(
                            f"{name}: step {step + 1} has loss {began.loss}, not {side.losses[step + 1]}"
                        )
                    times[name][step].append(began.seconds)
                    report.progress(f"round {number + 1}, after step {step}, {name}: {began.seconds:.2f} s")
        equal = sum(ours.ends_equal_after_a_kill(number) for number in range(KILLS))
    write(times, equal)


def write(times: Mapping[str, Mapping[int, list[float]]], equal: int) -> None:
    results = {
        "seconds_to_first_step": {
            side: {f"after step {step}": report.summary(values) for step, values in each.items()}
            for side, each in times.items()
        },
        "times_the_peer": {
            f"after step {step}": report.summary(
                [a / b for a, b in zip(times["ours"][step], times["trl"][step], strict=True)]
            )
            for step in STARTS
        },
        "kills": KILLS,
        "equal_after_a_kill": equal,
    }
    settings = {
        "rounds": ROUNDS,
        "rows": NUM_ROWS,
        "rows_per_step": BATCH_ROWS,
        "steps": NUM_STEPS,
        "seed": SEED,
    }
    packages = ("torch", "transformers", "peft", "trl", "accelerate", "datasets")
    report.write("training-starts", results, packages=packages, settings=settings)


class Ours:
    def __init__(self, scratch: Path, inputs: Inputs) -> None:
        self._directory = scratch / "ours"
        self._inputs = inputs
        self._draw = random.Random(SEED)
        self._bundles: dict[int, Path] = {}
        self.losses, self._model = self._whole()

    def start(self, step: int) -> Start:
        """Until the first step is reported."""
        work_dir = self._directory / "start"
        began = time.monotonic()
        child = start_child(work_dir, self._order(step))
        wait_for_step(child, work_dir, step + 1)
        seconds = time.monotonic() - began
        end_all(child)
        [first, *_] = reports_of(reports_in(work_dir), Stepped)
        shutil.rmtree(work_dir)
        return Start(seconds, first.loss)

    def ends_equal_after_a_kill(self, number: int) -> bool:
        killed, continued = (self._directory / f"{name}-{number}" for name in ("killed", "continued"))
        order = self._order(LATE)
        child = start_child(killed, order)
        wait_for_step(child, killed, self._draw.randrange(LATE + 1, NUM_STEPS - 1))
        end_all(child)
        reports = reports_in(killed)
        done = reports_of(reports, Stepped)[-1].step
        saved = reports_of(reports, Saved)
        if saved:
            bundle = as_bundle(order, saved[-1], self._directory / f"newest-{number}")
            order = order.model_copy(update={"resume_dir": bundle})
        child = start_child(continued, order)
        wait_for_exit(child, continued)
        is_equal: bool = model_sha256(reports_of(reports_in(continued), Saved)[-1]) == self._model
        after = saved[-1].step if saved else LATE
        report.progress(f"kill {number + 1}: in step {done + 1}, continued after {after}, equal: {is_equal}")
        return is_equal

    def _order(self, step: int = NEW) -> TrainingOrder:
        order: TrainingOrder = an_order(self._inputs, the_recipe(), resume_dir=self._bundles.get(step))
        return order

    def _whole(self) -> tuple[Mapping[int, float], str]:
        """Losses by step, and the digest of the model at the end."""
        work_dir, order = self._directory / "whole", self._order()
        began = time.monotonic()
        child = start_child(work_dir, order)
        code = child.wait()
        if code != 0:
            raise SystemExit(f"the whole run ended with {code}; its log is {work_dir}")
        report.progress(f"ours: {NUM_STEPS} steps in {time.monotonic() - began:.0f} s")
        reports = reports_in(work_dir)
        saved = {each.step: each for each in reports_of(reports, Saved)}
        for step in (EARLY, LATE):
            self._bundles[step] = as_bundle(order, saved[step], self._directory / f"bundle-{step}")
        losses = {stepped.step: stepped.loss for stepped in reports_of(reports, Stepped)}
        return losses, model_sha256(saved[NUM_STEPS])


class Peer:
    def __init__(self, scratch: Path, inputs: Path) -> None:
        self._inputs, self._output = inputs, scratch / "trl"
        write_rows(inputs)
        began = time.monotonic()
        with self._script(NEW, saved=(EARLY, LATE), last=LATE + 1) as script:
            self.losses = dict(_steps_of(script))
        report.progress(f"trl: {len(self.losses)} steps in {time.monotonic() - began:.0f} s")

    def start(self, step: int) -> Start:
        """Until the first step is printed."""
        began = time.monotonic()
        with self._script(step, saved=(), last=step + 1) as script:
            [_, loss] = next(_steps_of(script))
            seconds = time.monotonic() - began
            script.kill()
        return Start(seconds, loss)

    def _script(self, step: int, *, saved: Sequence[int], last: int) -> subprocess.Popen[str]:
        arguments = [str(self._inputs), str(self._output), ",".join(map(str, saved)), str(last)]
        if step != NEW:
            arguments.append(str(self._output / f"checkpoint-{step}"))
        command = [sys.executable, "-m", "bench.training.starts_peer", *arguments]
        return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)


def _steps_of(script: subprocess.Popen[str]) -> Iterator[tuple[int, float]]:
    """Number and loss, once a step has ended. What else the script prints has other words."""
    assert script.stdout is not None
    for line in script.stdout:
        step, _, loss = line.partition(" ")
        if step.isdecimal():
            yield int(step), float(loss)
    if script.wait() != 0:
        raise SystemExit(f"the script ended with {script.returncode}")


if __name__ == "__main__":
    main()
