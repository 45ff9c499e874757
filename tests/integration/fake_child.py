"""A training child without torch: `fake_child.py <what it does, as JSON> <work directory>`.

steps            how many there are
seconds          of one step
micro_batches    how many each step has; each takes so long, and is reported
every            a periodic bundle each so many steps; 0: none
hang_at          stops moving at that step, and ignores everything
fail_at          ends at that step with a report of class `numeric`
crash_at         exits at that step with code 3 and says nothing
ignore_stop      continues as if nobody had asked
save_seconds     of the last bundle
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

from schemas import layout
from schemas.artifacts import FileEntry, ReferenceIdentity, ResumeCertificate
from schemas.base import FailureClass
from schemas.specification import Method
from schemas.training import BundleMetrics, PackingVerdict, Preparation
from services.trainer_agent.protocol import (
    REPORTS,
    STOP,
    BundleKind,
    Ended,
    Outcome,
    PreflightDone,
    Progressed,
    ReferenceComputed,
    Report,
    ResumeChecked,
    Saved,
    Started,
    Stepped,
    TrainingOrder,
    bundle_dir,
)
from shared.processes.orders import ORDER, read_order

DEFAULTS = {"steps": 5, "seconds": 0.01, "micro_batches": 1, "every": 0, "save_seconds": 0.0}


class FakeChild:
    def __init__(self, script: str, work_dir: Path) -> None:
        self.work_dir = work_dir
        self.order = read_order(work_dir / ORDER, TrainingOrder)
        self.script = DEFAULTS | json.loads(script)
        self.step = 0

    def report(self, report: Report) -> None:
        with (self.work_dir / REPORTS).open("a") as file:
            file.write(report.model_dump_json() + "\n")

    def run(self) -> int:
        self.start()
        while self.step < self.script["steps"]:
            while self.step == self.script.get("hold_at") and not self.is_asked_to_stop:
                time.sleep(0.02)
            if self.is_asked_to_stop and self.step >= self.script.get("hold_at", 0):
                return self.end(BundleKind.EMERGENCY, Outcome.STOPPED, 143)
            self.step += 1
            self.compute()
            if self.step == self.script.get("hang_at"):
                time.sleep(600)
            if self.step == self.script.get("crash_at"):
                return 3
            self.report_step()
            if self.step == self.script.get("fail_at"):
                return self.fail()
            if self.script["every"] and self.step % self.script["every"] == 0:
                self.save(BundleKind.PERIODIC)
        return self.end(BundleKind.FINAL, Outcome.COMPLETED, 0)

    def compute(self) -> None:
        total = self.script["micro_batches"]
        for done in range(1, total + 1):
            time.sleep(self.script["seconds"])
            if done < total:
                self.report(Progressed(done=done, total=total))

    @property
    def is_asked_to_stop(self) -> bool:
        return (self.work_dir / STOP).exists() and not self.script.get("ignore_stop")

    def start(self) -> None:
        resume = self.order.resume_dir
        if resume is not None:
            self.step = json.loads((resume / "state.json").read_text())["step"]
        self.report(
            Started(
                num_steps=self.script["steps"],
                start_step=self.step,
                world_size=self.order.world_size,
            )
        )
        self.report(PreflightDone(preparation=self.preparation))
        if self.order.recipe.method is Method.DPO:
            self.look_for_reference()
        if resume is not None:
            self.report(
                ResumeChecked(certificate=ResumeCertificate(exact=True, step=self.step, reason="equal"))
            )

    def look_for_reference(self) -> None:
        """As the real child does: what was stored is read, else computed and reported."""
        if self.order.reference is not None:
            print(f"reference read: {self.order.reference.read_text()}", flush=True)  # noqa: T201
            return
        print("reference computed", flush=True)  # noqa: T201
        path = self.work_dir / layout.REFERENCE
        path.write_text(f"computed by attempt {self.order.attempt}")
        identity = ReferenceIdentity(
            base_sha=self.order.base_sha,
            dataset_version=self.order.dataset_version,
            template_sha256=self.order.config_hash,
            weights=self.order.recipe.kind,
            precision="float32",
        )
        self.report(
            ReferenceComputed(
                path=path,
                identity=identity,
                size_bytes=path.stat().st_size,
                sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            )
        )

    @property
    def preparation(self) -> Preparation:
        recipe = self.order.recipe
        return Preparation(
            device="cpu",
            world_size=self.order.world_size,
            precision="float32",
            num_parameters=1,
            num_trainable=1,
            batch_size=1 if recipe.batch_size == "auto" else recipe.batch_size,
            micro_batch_size=recipe.micro_batch_size,
            gradient_checkpointing=False,
            packing=PackingVerdict.PROVED,
            memory_bytes=1,
        )

    def report_step(self) -> None:
        print(f"step {self.step}", flush=True)  # noqa: T201
        self.report(
            Stepped(
                step=self.step,
                loss=1.0 / self.step,
                learning_rate=0.1,
                grad_norm=1.0,
                num_tokens=10,
                tokens_per_second=10.0,
                memory_bytes=1,
                epoch=0.1,
            )
        )

    def fail(self) -> int:
        self.report(
            Ended(
                outcome=Outcome.FAILED,
                failure_class=FailureClass.NUMERIC,
                message="loss is NaN",
                last_step=self.step,
            )
        )
        return 1

    def end(self, kind: BundleKind, outcome: Outcome, code: int) -> int:
        time.sleep(self.script["save_seconds"])
        self.save(kind)
        self.report(Ended(outcome=outcome, last_step=self.step))
        return code

    def save(self, kind: BundleKind) -> None:
        """Of each node one part; the first node knows all of them, since all are made alike."""
        parts = [self.part(node) for node in range(self.order.nodes)]
        own = int(os.environ["RUNNER_NODE_ID"].rpartition("-n")[2])
        directory = bundle_dir(self.work_dir, self.step)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / parts[own].path).write_bytes(self.content(own))
        self.report(
            Saved(
                step=self.step,
                bundle=kind,
                directory=directory,
                parts=(parts[own],),
                all_parts=tuple(parts) if own == 0 else (),
                metrics=BundleMetrics(train_loss=1.0 / max(self.step, 1)),
            )
        )

    def content(self, node: int) -> bytes:
        return json.dumps({"step": self.step, "node": node}).encode()

    def part(self, node: int) -> FileEntry:
        data = self.content(node)
        name = "state.json" if node == 0 else f"state-{node}.json"
        return FileEntry(path=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


if __name__ == "__main__":
    sys.exit(FakeChild(sys.argv[1], Path(sys.argv[2])).run())
