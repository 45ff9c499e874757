"""Production's own handlers and decisions, wired as in each `app.py`; only their stores and clients are in memory."""

import dataclasses
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from inspect import iscoroutinefunction
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

import services.checkpoint_watcher.handlers
import services.evaluator.handlers.evaluations
import services.evaluator.handlers.gate
import services.provisioner.handlers
import services.provisioner.handlers.apply
import services.provisioner.handlers.cluster
import services.provisioner.handlers.leases
import services.provisioner.handlers.machines
import services.provisioner.handlers.messages
import services.provisioner.handlers.pools
import services.registry.handlers
import services.registry.handlers.base_models
import services.registry.handlers.slots
import services.registry.handlers.versions
import services.scheduler.handlers
import services.scheduler.loops
import services.scheduler.shared_rows
import services.serving_controller.handlers
import services.serving_controller.handlers.messages
import services.serving_controller.handlers.rounds
import services.serving_controller.handlers.steps
import services.trainer_agent.handlers
from services.provisioner.backends.dispatch import Backends
from services.scheduler.decide.decision import Policy
from tests.node_keys import NODE_KEYS
from tests.simulation import fast, gate, serving, stores
from tests.simulation.stores import (
    checkpoint_watcher,
    evaluator,
    provisioner,
    registry,
    scheduler,
    serving_controller,
    trainer_agent,
)
from tests.simulation.tables import Tables

if TYPE_CHECKING:
    from tests.simulation.kernel import Kernel
    from tests.simulation.world import World

STORES = {
    scheduler: (services.scheduler.handlers, services.scheduler.loops, services.scheduler.shared_rows),
    provisioner: (
        services.provisioner.handlers.apply,
        services.provisioner.handlers.cluster,
        services.provisioner.handlers.leases,
        services.provisioner.handlers.machines,
        services.provisioner.handlers.messages,
        services.provisioner.handlers.pools,
    ),
    trainer_agent: (services.trainer_agent.handlers,),
    checkpoint_watcher: (services.checkpoint_watcher.handlers,),
    evaluator: (services.evaluator.handlers.evaluations, services.evaluator.handlers.gate),
    registry: (
        services.registry.handlers.base_models,
        services.registry.handlers.slots,
        services.registry.handlers.versions,
    ),
    serving_controller: (
        services.serving_controller.handlers.messages,
        services.serving_controller.handlers.rounds,
    ),
}
TIMED = (
    services.scheduler.loops,
    services.serving_controller.handlers.rounds,
    services.serving_controller.handlers.steps,
)
MINUTE = timedelta(minutes=1)


class _Now:
    """The world that runs: what production reads from the clock of the machine comes from its clock."""

    world: "World"


class _Silence:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return _ignore


def _ignore(*_: object, **__: object) -> None:
    """Nobody reads the logs of a simulated service."""


def _next_uuid() -> UUID:
    return _Now.world.next_uuid()


def _at_storage(name: str) -> Callable[..., Any]:
    """In place of a function of the watcher's clients."""

    def call(*asked: Any) -> Any:
        return getattr(_Now.world.storage, name)(*asked)

    return call


async def _at_once(function: Callable[[], Any]) -> Any:
    """In place of a thread."""
    return function()


class _Statements:
    """A store whose functions are statements of the transaction that they are given first."""

    def __init__(self, store: ModuleType) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return _statement(getattr(self._store, name))


@cache
def _statement(function: Any) -> Any:
    if not iscoroutinefunction(function):
        return function

    def ask(conn: Tables, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        return conn.ask(lambda: function(conn, *args, **kwargs))

    return ask


class _MachineClock:
    """In place of the module `time`."""

    @staticmethod
    def monotonic() -> float:
        return _Now.world.clock.now


@contextmanager
def in_memory() -> Iterator[None]:
    """Production's handler modules see the stores, the clock and the silence of the simulation."""
    with pytest.MonkeyPatch.context() as patch:
        for store, modules in STORES.items():
            for module in modules:
                for name in {"store", "queue_store"} & vars(module).keys():
                    patch.setattr(module, name, _Statements(store))
                patch.setattr(module, "log", _Silence(), raising=False)
        for module in TIMED:
            patch.setattr(module, "time", _MachineClock, raising=False)
        patch.setattr(services.scheduler.handlers, "to_thread", _at_once)
        # Devices are leased by the simulation's users: no replica of it leases any.
        patch.setattr(services.serving_controller.handlers.holder, "listen", _ignore)
        patch.setattr(services.serving_controller.handlers.steps, "log", _Silence())
        patch.setattr(services.serving_controller.handlers.steps, "uuid4", _next_uuid)
        patch.setattr(services.serving_controller.handlers.steps, "probe", serving.Probe)
        for name, loaded in list(sys.modules.items()):
            if name.startswith("services.") and getattr(loaded, "replace", None) is dataclasses.replace:
                patch.setattr(loaded, "replace", fast.replace)
        for name in ("verify_bundle", "delete_all", "delete_bundle", "delete_logs", "delete_abandoned"):
            patch.setattr(services.checkpoint_watcher.handlers, name, _at_storage(name))
        yield


def enter(world: "World") -> None:
    _Now.world = world


def wire_scheduler(kernel: "Kernel") -> None:
    policy = Policy(grow_after=timedelta(seconds=1))
    services.scheduler.loops.register(
        kernel,  # type: ignore[arg-type]
        services.scheduler.handlers.register(kernel, policy),  # type: ignore[arg-type]
        look_every=timedelta(seconds=5),
        look_anyway_every=timedelta(seconds=25),
        announce_every=MINUTE,
    )


def wire_provisioner(kernel: "Kernel") -> None:
    services.provisioner.handlers.register(  # type: ignore[arg-type]
        kernel,
        Backends(kernel.world.engine),
        NODE_KEYS,
        pools_file=PoolsFile(kernel.world.pools),
        connect=lambda _: {},
        count_every=MINUTE,
    )


def wire_trainer_agent(kernel: "Kernel") -> None:
    services.trainer_agent.handlers.register(kernel)  # type: ignore[arg-type]


def wire_checkpoint_watcher(kernel: "Kernel") -> None:
    services.checkpoint_watcher.handlers.register(kernel, WATCHER)  # type: ignore[arg-type]


def wire_evaluator(kernel: "Kernel") -> None:
    gate.register(kernel)


def wire_registry(kernel: "Kernel") -> None:
    copies = gate.Copies(kernel.world)
    # Nobody asks for an export here: its task touches nothing that other services know.
    services.registry.handlers.register(  # type: ignore[arg-type]
        kernel, mirror=gate.Mirror(kernel.world), copies=copies, model_exports=None, attempts=12
    )


def wire_serving_controller(kernel: "Kernel") -> None:
    serving.register(kernel)


class PoolsFile:
    """The pools file, which is read at each start."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read_text(self) -> str:
        return self._text


class _WatcherSettings:
    keep_verified = 2
    overdue_intervals = 3.0
    try_again_after = MINUTE
    sweep_after = timedelta(hours=1)
    keep_ended = timedelta(hours=1)
    timing = SimpleNamespace(history_retention=timedelta(hours=1))


WATCHER: Any = _WatcherSettings()

SERVICES: dict[str, Callable[["Kernel"], None]] = {
    "scheduler": wire_scheduler,
    "provisioner": wire_provisioner,
    "trainer_agent": wire_trainer_agent,
    "checkpoint_watcher": wire_checkpoint_watcher,
    "evaluator": wire_evaluator,
    "registry": wire_registry,
    "serving_controller": wire_serving_controller,
}

__all__ = ["SERVICES", "enter", "in_memory", "stores"]
