"""What a scoring child that ends means where its device was leased, and what becomes of the lease."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.base import Delayed, DeviceKind
from schemas.node import LeasedNode
from services.evaluator.clients.child import ScoringCrashed
from services.evaluator.handlers import devices as module
from services.evaluator.handlers.devices import Devices, DevicesLost
from shared.device_leases import fence
from shared.device_leases.lease import HeldLease, LeaseState
from tests.builders import NOON
from tests.unit.evaluator.evaluations import an_evaluation

SUBJECT = "scoring-eval-1"
HELD = HeldLease(SUBJECT, "lease-1", LeaseState.HELD, (3,), DeviceKind.CUDA, until=NOON + timedelta(hours=1))
QUEUED = replace(HELD, state=LeaseState.QUEUED, reason="1 device: 1 held by serving")


class Leases:
    """What the provisioner answers, one state for each look; the last one stays."""

    pool = "gpu"
    has_nodes = False
    extend_every = timedelta(hours=1)

    def __init__(self, *states: HeldLease) -> None:
        self.states = list(states)
        self.given_back: list[str] = []
        self.asked: list[int] = []

    async def ask(self, unit: Any, subject: str, *, devices: int) -> None:
        self.asked.append(devices)

    async def find(self, conn: Any, subject: str) -> HeldLease | None:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    async def give_back(self, unit: Any, subject: str) -> None:
        self.given_back.append(subject)


class Service:
    def __init__(self) -> None:
        self.emitted: list[Any] = []

    def clock(self) -> Any:
        return NOON

    @asynccontextmanager
    async def unit(self) -> AsyncIterator[Any]:
        async def emit(*messages: Any) -> None:
            self.emitted += messages

        yield SimpleNamespace(conn=None, emit=emit)


def scored(leases: Leases, tmp_path: Path, *, num_devices: int = 1, crashes: bool = False) -> Any:
    """Run what is done with devices; the child's variables and what was emitted."""
    service = Service()
    devices: Any = Devices(service, leases, device="cuda")  # type: ignore[arg-type]

    async def run() -> Any:
        evaluation = replace(an_evaluation(), eval_id="eval-1")
        async with devices.leased(evaluation, tmp_path, num_devices) as environment:
            if crashes:
                raise ScoringCrashed("exit code -9")
            return environment

    return asyncio.run(run()), service.emitted


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(module, "ASK_AGAIN_SECONDS", 0.0)


def test_it_waits_says_so_once_and_computes_on_its_device(tmp_path):
    leases = Leases(replace(HELD, until=NOON), QUEUED, QUEUED, HELD)
    environment, emitted = scored(leases, tmp_path)
    assert environment == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "3",
        fence.VARIABLE: str(tmp_path / "lease"),
    }
    assert [(type(fact), fact.waiting_for) for fact in emitted] == [(Delayed, QUEUED.reason)]
    assert leases.given_back == [SUBJECT]


def test_a_model_of_several_devices_sees_them_all(tmp_path):
    leases = Leases(QUEUED, replace(HELD, devices=(2, 3)))
    environment, _ = scored(leases, tmp_path, num_devices=2)
    assert environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert leases.asked == [2]


def test_a_wait_that_nobody_explains_is_shown_too(tmp_path):
    _, emitted = scored(Leases(replace(QUEUED, reason=""), HELD), tmp_path)
    assert [fact.waiting_for for fact in emitted] == ["the queue of pool gpu"]


def test_a_child_that_crashed_on_its_device_is_a_failure_and_the_device_goes_back(tmp_path):
    leases = Leases(HELD)
    with pytest.raises(ScoringCrashed):
        scored(leases, tmp_path, crashes=True)
    assert leases.given_back == [SUBJECT]


@pytest.mark.parametrize(
    "lost", [replace(HELD, state=LeaseState.ENDED), replace(HELD, until=NOON)], ids=["ended", "not confirmed"]
)
def test_a_child_that_ended_with_its_lease_is_no_failure(lost, tmp_path):
    with pytest.raises(DevicesLost):
        scored(Leases(HELD, lost), tmp_path, crashes=True)


def test_a_pool_that_cannot_lease_is_shown_and_asked_again(tmp_path):
    refused = replace(HELD, state=LeaseState.REFUSED, reason="unknown_pool: no pool gpu")
    wrong = replace(HELD, device=DeviceKind.CPU)
    leases = Leases(refused, wrong, HELD)
    _, emitted = scored(leases, tmp_path)
    assert [fact.waiting_for for fact in emitted] == [
        "devices of pool gpu: unknown_pool: no pool gpu",
        "devices of pool gpu: pool gpu has cpu, expected cuda",
    ]
    assert leases.given_back == [SUBJECT] * 3


def test_devices_elsewhere_than_it_computes_are_shown_and_asked_for_again(tmp_path):
    elsewhere = replace(HELD, node=LeasedNode(node_id="r-1-e1-n0"))
    leases = Leases(elsewhere, HELD)
    _, emitted = scored(leases, tmp_path)
    assert [fact.waiting_for for fact in emitted] == [
        "devices of pool gpu: they are on a node of another backend, expected otherwise: see EVALUATOR_ON_NODES"
    ]


def test_without_a_pool_nothing_is_leased(tmp_path):
    devices: Any = Devices(Service(), None, device="cpu")  # type: ignore[arg-type]

    async def run() -> Any:
        async with devices.leased(an_evaluation(), tmp_path, 1) as environment:
            return environment

    assert asyncio.run(run()) == {}
