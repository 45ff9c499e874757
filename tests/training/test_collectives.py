"""What processes of one run say to each other: bytes of bounded length, and nothing that runs when it is read."""

import json
import os
import subprocess
import sys
from pathlib import Path

from services.trainer_agent.training.distributed import MAX_TEXT_BYTES
from shared.ports import free_port

SAY = """
import faulthandler, json, os, sys
from pathlib import Path
import torch.distributed.distributed_c10d as c10d
from services.trainer_agent.training.distributed import joined, own_world

def refuse(*args):
    raise AssertionError("a peer's bytes were unpickled")

def heard(text):
    try:
        return world.gathered(text)
    except ValueError as error:
        return str(error)

faulthandler.dump_traceback_later(150, exit=True)
folder = Path(sys.argv[1])
c10d._tensor_to_object = refuse
world = own_world(os.environ)
with joined(world, even_alone=False):
    texts = json.loads((folder / "texts").read_text())[world.rank]
    (folder / f"heard-{world.rank}").write_text(json.dumps([heard(text) for text in texts]))
"""


def heard_by_both(folder: Path, *texts: list[str]) -> list[list[object]]:
    """What each rank hears, or the error, for each of `texts[rank]`."""
    (folder / "texts").write_text(json.dumps(texts))
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SAY, str(folder)],
            env={
                **os.environ,
                **rendezvous,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": "2",
            },
            cwd=Path(__file__).parents[2],
        )
        for rank in (0, 1)
    ]
    assert [rank.wait() for rank in ranks] == [0, 0]
    return [json.loads((folder / f"heard-{rank}").read_text()) for rank in (0, 1)]


def test_texts_of_any_length_up_to_the_limit_reach_all_by_rank(tmp_path):
    texts = [
        ["", "same", "naïve ☕ \0", "x" * 100_000, "x" * (MAX_TEXT_BYTES + 1), "again"],
        ["", "same", "b", "", "short", "again"],
    ]
    expected: list[object] = [[first, second] for first, second in zip(*texts, strict=True)]
    expected[4] = f"texts of ranks have [{MAX_TEXT_BYTES + 1}, 5] bytes, expected at most {MAX_TEXT_BYTES}"
    for heard in heard_by_both(tmp_path, *texts):
        assert heard == expected
