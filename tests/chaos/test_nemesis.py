"""What the chaos is made of holds by itself: the plan of faults, the disk, the trainer that any run ends alike."""

import itertools
from collections import Counter

import pytest

from schemas.topics import SERVICES
from shared.model_files.tensors import TRAINED_DTYPES, read_tensors
from tests.chaos.nemesis import (
    DETACHED,
    DISK,
    LINES,
    PARTS,
    PROCESSES,
    Fault,
    SmallDisk,
    plan,
    small_disk,
    too_few,
)
from tests.chaos.trainer import LOUD, QUIET, RUINOUS_RATE, adapter_files, loudness, state_after

MENU = (*PROCESSES, *LINES, *DISK)


def test_a_seed_gives_its_faults_again_and_another_seed_others():
    assert plan(7, 600, MENU) == plan(7, 600, MENU)
    assert plan(7, 600, MENU) != plan(8, 600, MENU)


def test_every_fault_of_the_menu_comes_and_is_over_in_time():
    blows = list(itertools.chain.from_iterable(plan(seed, 120, MENU) for seed in range(60)))
    assert {blow.fault for blow in blows} == {choice.fault for choice in MENU}
    assert {*SERVICES, *PARTS, *DETACHED, "nodes"} == {blow.target for blow in blows}
    assert all(0 < blow.at_seconds < 120 and blow.at_seconds + blow.lasts_seconds < 120 for blow in blows)


def test_a_kind_of_fault_that_struck_too_seldom_in_an_hour_is_named_with_its_number():
    for seed in range(20):
        blows = plan(seed, 3600, MENU)
        assert too_few(blows, blows, seconds=3600) == {}
        assert min(Counter(blow.fault for blow in blows).values()) >= 18
        resets = [blow for blow in blows if blow.fault is Fault.RESET]
        struck = [blow for blow in blows if blow not in resets[17:]]
        assert too_few(struck, blows, seconds=3600) == {Fault.RESET: 17}
        assert too_few([], blows, seconds=60) == {}, "a minute needs none of each kind"


async def test_a_full_disk_is_full_for_a_while(tmp_path):
    with small_disk(tmp_path / "nodes", mebibytes=2) as disk:
        if not isinstance(disk, SmallDisk):
            pytest.skip(disk)
        async with disk.full():
            with pytest.raises(OSError, match="No space left"):
                (tmp_path / "nodes" / "one-more").write_bytes(bytes(4096))
        (tmp_path / "nodes" / "one-more").write_bytes(bytes(4096))


class TestTrainer:
    def test_a_run_that_was_resumed_ends_as_one_that_was_not(self):
        half = state_after("config", 40)
        assert state_after("config", 100, half, 40) == state_after("config", 100)

    @pytest.mark.parametrize(("state", "first"), [(b"", 40), ("config 39", 40), ("other 40", 40)])
    def test_a_run_that_lost_or_mixed_up_its_state_does_not(self, state, first):
        if isinstance(state, str):
            config, step = state.split()
            state = state_after(config, int(step))
        assert state_after("config", 100, state, first) != state_after("config", 100)

    @pytest.mark.parametrize(("rate", "size"), [(1e-4, QUIET), (RUINOUS_RATE, LOUD)])
    def test_its_adapter_is_one_that_the_registry_reads(self, tmp_path, rate, size):
        weights = adapter_files(state_after("config", 3), learning_rate=rate)[
            "model/adapter_model.safetensors"
        ]
        path = tmp_path / "adapter_model.safetensors"
        path.write_bytes(weights)
        tensors = read_tensors(path, dtypes=TRAINED_DTYPES)
        assert [tensor.shape for tensor in tensors] == [(4, 64), (64, 4)]
        assert 0.5 * size < loudness(weights) < size
