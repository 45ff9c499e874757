"""The environment of a training child, which runs on data of tenants."""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.base import DatasetRef
from schemas.specification import Recipe
from schemas.training import Member, StartTraining
from services.trainer_agent.protocol import TrainingOrder
from services.trainer_agent.runner.child import Child, argv_of, environment_of, mark
from services.trainer_agent.runner.settings import Settings
from tests.builders import a_sha
from tests.unit.shared.environments import NEEDED, SECRETS

RUNNER = {
    "RUNNER_KAFKA_BOOTSTRAP": "127.0.0.1:9",
    "RUNNER_KAFKA_USERNAME": "runner",
    "RUNNER_KAFKA_PASSWORD": "canary",
    "RUNNER_TRAINER_AGENT_URL": "http://127.0.0.1:9",
    "RUNNER_JOB_ID": "ftjob-1",
    "RUNNER_TENANT": "acme",
    "RUNNER_ATTEMPT": "1",
    "RUNNER_NODE_INDEX": "0",
    "RUNNER_NODE_ID": "a-ftjob-1-e1-n0",
    "RUNNER_WORK_DIR": "work",
    "RUNNER_NOTICE_FILE": "notice",
    "RUNNER_CACHE_DIR": "cache",
    "RUNNER_NODE_KEY_FILE": "canary",
}
LAUNCH = "services.trainer_agent.training.launch"
START = StartTraining(
    job_id="ftjob-1",
    tenant="acme",
    attempt=1,
    recipe=Recipe(),
    base_sha=a_sha("tiny"),
    dataset=DatasetRef(version=a_sha("dataset"), manifest_sha256=a_sha("manifest")),
    config_hash=a_sha("config"),
    resume=None,
    nodes=1,
    devices_per_node=1,
    members=(Member(node_index=0, host="127.0.0.1", port=9),),
    grace_seconds=30,
)


@pytest.fixture
def environment(monkeypatch) -> dict[str, str]:
    for name, value in {**RUNNER, **NEEDED, **SECRETS}.items():
        monkeypatch.setenv(name, value)
    return environment_of(Settings(), START)


def test_it_holds_no_secret_of_anyone(environment):
    assert [name for name, value in environment.items() if value == "canary"] == []


def test_of_the_runners_own_it_holds_the_marks_by_which_the_child_is_found_and_nothing_else(environment):
    name, _, node_id = mark("a-ftjob-1-e1-n0").partition("=")
    assert {name: value for name, value in environment.items() if name.startswith("RUNNER_")} == {
        name: node_id,
        "RUNNER_NODE_ID": "a-ftjob-1-e1-n0",
    }


def test_it_holds_what_programs_need(environment):
    own = {"OMP_NUM_THREADS"}
    assert {name: environment.get(name) for name in NEEDED if name not in own} == {
        name: value for name, value in NEEDED.items() if name not in own
    }


def test_it_finds_no_model_on_the_network(environment):
    assert environment["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    ("nodes", "devices", "launcher"),
    [
        (1, 1, "services.trainer_agent.training.main"),
        (1, 2, LAUNCH),
        (2, 1, LAUNCH),
    ],
)
def test_only_processes_that_meet_others_start_through_torchrun(environment, nodes, devices, launcher):
    start = START.model_copy(update={"nodes": nodes, "devices_per_node": devices})
    argv = argv_of(Settings(), start, 4000)
    assert (argv[2], argv[-1]) == (launcher, "work")


def test_with_a_runner_of_an_older_release_it_meets_at_node_0(environment):
    argv = argv_of(Settings(), START.model_copy(update={"nodes": 2}), None)
    assert argv[2] == "torch.distributed.run"
    assert argv[argv.index("--master-addr") + 1 :][:3] == ["127.0.0.1", "--master-port", "9"]


def test_processes_listen_for_each_other_at_their_nodes_address_alone(environment, monkeypatch):
    """Of several nodes NCCL chooses its networks itself; where no interface has the address, gloo does."""
    own = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}
    for name in own:
        monkeypatch.delenv(name, raising=False)

    def listening(host: str, nodes: int) -> dict[str, str]:
        monkeypatch.setenv("RUNNER_HOST", host)
        variables = environment_of(Settings(), START.model_copy(update={"nodes": nodes}))
        return {name: variables[name] for name in own & variables.keys()}

    assert listening("203.0.113.9", 1) == dict.fromkeys(own, "lo")
    assert listening("127.0.0.1", 2) == {"GLOO_SOCKET_IFNAME": "lo"}
    assert listening("203.0.113.9", 2) == {}
    for name in own:
        monkeypatch.setenv(name, "wg0")
    assert listening("127.0.0.1", 2) == dict.fromkeys(own, "wg0"), "of the pool's environment"
    assert listening("203.0.113.9", 1) == dict.fromkeys(own, "lo"), "alone it needs no network"


async def test_it_has_its_work_directory_and_the_inputs_of_its_order(environment, monkeypatch, tmp_path):
    commands: list[list[str]] = []

    async def start(command: list[str], **_: Any) -> None:
        commands.append(command)

    monkeypatch.setattr("shared.processes.spawn.start", start)
    monkeypatch.setenv("RUNNER_WORK_DIR", str(tmp_path))
    order = TrainingOrder(
        job_id=START.job_id,
        attempt=START.attempt,
        recipe=START.recipe,
        base_dir=Path("/base"),
        dataset_dir=Path("/dataset"),
        resume_dir=Path("/bundle"),
        base_sha=START.base_sha,
        dataset_version=START.dataset.version,
        config_hash=START.config_hash,
    )
    await Child.start(Settings(), START, order)
    files = json.loads(commands[0][3])["files"]
    assert files == {"writes": [str(tmp_path)], "reads": ["/base", "/dataset", "/bundle"], "has_peers": True}
