"""How long swaps took, as the command line writes it."""

import json

from tests.unit.cli.commandline import CommandLine, paged

STEPS = {"fetch_seconds": 0.25, "load_seconds": 0.6, "read_back_seconds": 0.002, "probe_seconds": 0.04}
SWAP = {
    "replicas": [
        STEPS | {"replica_id": "serve-1-0"},
        STEPS | {"replica_id": "serve-1-1", "fetch_seconds": None, "probe_seconds": 0.03},
    ],
    "route_seconds": 0.007,
    "total_seconds": 2.0,
}
SLOT = {"slot": "docs", "status": "ready", "generation": 2, "digest": "5e" * 32, "reason": "", "swap": SWAP}
GENERATION = SLOT | {"approved_at": None, "failed_step": None, "rolled_back_from": None}
FAILED = {"generation": 3, "status": "failed", "approved_at": 1767268800, "swap": None} | {
    "failed_step": "read_back",
    "reason": "not listed",
}
BACK = {
    "generation": 1,
    "rolled_back_from": "6f" * 32,
    "swap": {"replicas": [], "route_seconds": 0.012, "total_seconds": 0.012},
}


def lines(out: str) -> list[str]:
    return [" ".join(line.split()) for line in out.splitlines()]


def test_are_in_the_list(retune: CommandLine):
    retune.answers["GET /deployments"] = paged(SLOT)
    assert lines(retune.run("deployments", "list")[1])[1] == "docs ready 2 5e5e5e5e5e5e 2 s"


def test_are_listed_by_generation_step_by_step(retune: CommandLine):
    generations = [GENERATION | FAILED, GENERATION, GENERATION | BACK]
    retune.answers["GET /deployments/docs/history"] = paged(*generations)
    code, out, err = retune.run("deployments", "history", "docs")
    assert (code, err) == (0, "")
    assert lines(out) == [
        "generation status approved digest swap load read back probe route what",
        "3 failed 2026-01-01 12:00:00 5e5e5e5e5e5e read back failed: not listed",
        "2 ready 5e5e5e5e5e5e 2 s 850 ms 2 ms 40 ms 7 ms",
        "1 ready 5e5e5e5e5e5e 12 ms 12 ms rolled back from 6f6f6f6f6f6f",
    ]
    out = retune.run("--json", "deployments", "history", "docs", "--limit", "2")[1]
    assert json.loads(out) == generations[:2]
