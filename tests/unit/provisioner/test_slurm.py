"""What Slurm prints, of 22.05.8 as recorded, of later versions as their documentation has it; and what it is given."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.provisioner.backends.protocol import AttemptSpec, Cause
from services.provisioner.backends.slurm.jobs import (
    Machine,
    MachineState,
    comment_of,
    folder_of,
    parse_jobs,
    parse_machines,
)
from services.provisioner.backends.slurm.script import batch_script, sbatch_arguments
from services.provisioner.backends.slurm.status import Cluster
from services.provisioner.settings import SlurmPool

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)

RUNNING = {
    "job_id": 1,
    "name": "a-x-e1",
    "job_state": "RUNNING",
    "state_reason": "None",
    "comment": '{"digest": "d", "retune": "/shared"}',
    "preempt_time": 0,
    "end_time": 1827316768,
    "time_limit": None,
    "nodes": "n[1-2]",
}
LATER = {
    "job_id": 7,
    "name": "a-x-e1",
    "job_state": ["PREEMPTED", "COMPLETING"],
    "state_reason": "None",
    "comment": "",
    "preempt_time": {"set": True, "infinite": False, "number": 1795780787},
    "end_time": {"set": True, "infinite": False, "number": 1795780789},
    "time_limit": {"set": True, "infinite": True, "number": 0},
}


def job(**changes: object):
    return parse_jobs(json.dumps({"meta": {}, "jobs": [RUNNING | changes]}))[0]


def test_a_running_job_of_2205():
    seen = job()
    assert (seen.id, seen.name, seen.states) == (1, "a-x-e1", {"RUNNING"})
    assert (seen.preempted_at, seen.has_limit, seen.is_over, seen.reason) == (None, False, False, "")
    assert folder_of(seen.comment) == "/shared"


def test_a_preempted_job_of_2205_runs_until_its_grace_is_over():
    seen = job(preempt_time=1795780787, end_time=1795780789)
    assert seen.preempted_at == datetime.fromtimestamp(1795780787, UTC)
    assert seen.ends_at == datetime.fromtimestamp(1795780789, UTC)
    assert not seen.is_over


def test_a_job_of_a_later_version():
    [seen] = parse_jobs(json.dumps({"jobs": [LATER]}))
    assert (seen.is_over, seen.cause, seen.has_limit) == (False, Cause.PREEMPTED, False)
    assert seen.preempted_at == datetime.fromtimestamp(1795780787, UTC)


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("NODE_FAIL", Cause.NODE_LOST),
        ("PREEMPTED", Cause.PREEMPTED),
        ("TIMEOUT", Cause.PREEMPTED),
        ("CANCELLED", Cause.CANCELLED),
        ("BOOT_FAIL", Cause.START_TIMEOUT),
        ("COMPLETED", Cause.NODE_LOST),
    ],
)
def test_a_last_state_has_a_cause(state, cause):
    seen = job(job_state=state)
    assert (seen.is_over, seen.cause) == (True, cause)


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED"])
def test_after_a_preemption_no_state_tells_the_cause(state):
    assert job(job_state=state, preempt_time=1795780787).cause is Cause.PREEMPTED


def test_states_of_machines():
    printed = (
        "n1|allocated|a\nn2|draining|b\nn3|drained|c\nn4|down*|d\nn5|idle*|e\nn6|mixed|f\nn1|allocated|a\n"
    )
    assert parse_machines(printed) == {
        "n1": Machine(MachineState.UP, "a"),
        "n2": Machine(MachineState.DRAINING, "b"),
        "n3": Machine(MachineState.DRAINING, "c"),
        "n4": Machine(MachineState.LOST, "d"),
        "n5": Machine(MachineState.LOST, "e"),
        "n6": Machine(MachineState.UP, "f"),
    }


def test_a_node_is_at_the_address_of_its_jobs_machine_of_that_index():
    machines = {
        name: Machine(MachineState.UP, address) for name, address in (("n1", "10.0.0.1"), ("n2", "ib2"))
    }
    seen = job()
    cluster = Cluster((seen,), machines, NOW, {seen.id: ("n1", "n2", "n3")})
    assert seen.machines == "n[1-2]"
    assert [cluster.address(seen, index) for index in range(4)] == ["10.0.0.1", "ib2", "", ""]
    assert (cluster.address(None, 0), Cluster((seen,), machines, NOW).address(seen, 0)) == ("", "")


@pytest.mark.parametrize("comment", ["", "mine", "[]", '"retune"', '{"a": 1}'])
def test_a_comment_of_somebody_else_is_none_of_ours(comment):
    assert folder_of(comment) == ""


def test_a_comment_names_the_installation():
    assert folder_of(comment_of("/shared/a b", "digest")) == "/shared/a b"


class TestSubmission:
    ROOT = Path("/shared/a folder/a-x-e1")
    SPEC = AttemptSpec(
        "a-x-e1", "spot", 2, 8, ("run",), "x", "demo", 1, excluded=("n1", "n2"), grace_seconds=0.2
    )

    def test_has_what_the_pool_says(self):
        pool = SlurmPool(
            folder=Path("/shared"), partition="p", account="a", qos="q", flags=("--gpus-per-node={devices}",)
        )
        arguments = sbatch_arguments(self.SPEC, pool, self.ROOT)
        assert {"--partition=p", "--account=a", "--qos=q", "--gpus-per-node=8", "--nodes=2"} <= set(arguments)
        assert {"--exclude=n1,n2", "--no-requeue", "--dependency=singleton"} <= set(arguments)
        assert "--signal=B:USR1@1" in arguments
        assert not any(argument.startswith("--constraint") for argument in arguments)

    def test_quotes_what_a_shell_would_read(self):
        script = batch_script(self.SPEC, self.ROOT, ["python", '{"a": "$(reboot)"}'], ("--mpi=none",))
        assert "cd '/shared/a folder/a-x-e1' || exit 1" in script
        assert """sh python '{"a": "$(reboot)"}' &""" in script
        assert "--mpi=none" in script
