"""`python -m tests.simulation worlds SEED MESSAGES PROCESSES`, or `pairs EVERY STATE...`: what was seen, as one JSON object.

PROCESSES: of each service. EVERY: n takes each n-th pair.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

from tests.simulation import wiring
from tests.simulation.pairs import pairs_in, run_pair
from tests.simulation.scenario import runs
from tests.simulation.world import World


def summary(worlds: Iterable[World]) -> dict[str, Any]:
    began, ends, struck = time.process_time(), Counter[str](), Counter[str]()
    messages = count = waits = 0
    for world in worlds:
        ends.update(world.checker.jobs.last.values())
        struck.update(world.faults.struck)
        messages, count = messages + world.messages, count + 1
        waits += sum(kernel.tables.waits for kernel in world.kernels.values())
    seconds = time.process_time() - began
    return {
        "worlds": count,
        "messages": messages,
        "waits": waits,
        "cpu_seconds": seconds,
        "ends": ends,
        "struck": struck,
    }


def main(kind: str, *order: str) -> None:
    with wiring.in_memory():
        if kind == "pairs":
            every, *states = order
            pairs = chain.from_iterable(map(pairs_in, states))
            result = summary(run_pair(pair) for pair in islice(pairs, 0, None, int(every)))
        else:
            seed, messages, processes = map(int, order)
            result = summary(runs(seed, messages, processes=processes))
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
