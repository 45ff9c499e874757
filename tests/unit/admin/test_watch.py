"""`jobs watch`: a bar that goes as the job goes, on stderr, and an end that scripts can read."""

import io
import json

import httpx
import pytest
from rich.console import Console
from rich.progress import Progress

from services.admin.commands import jobs
from tests.unit.admin.commandline import CommandLine, lines

DONE = {"fine_tuned_model": "ft:tiny:acme:docs:1f2e3d4c"}


def a_job(
    phase: str, step: int | None = None, of: int | None = None, waiting_for: str = "", **changes: object
):
    return {
        "id": "ftjob-1",
        "fine_tuned_model": None,
        "error": {},
        "retune": {"phase": phase, "last_step": step, "num_steps": of, "waiting_for": waiting_for},
        **changes,
    }


STORY = (
    a_job("validating"),
    a_job("queued", waiting_for="0 of 1 nodes free", of=40),
    a_job("running", 10, 40),
    a_job("running", 20, 40),
    a_job("evaluating", 40, 40),
)


class EveryUpdate(Progress):
    """Draws at each update, not by its own clock."""

    def update(self, *arguments: object, **changes: object) -> None:
        super().update(*arguments, **changes, refresh=True)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    drawn = io.StringIO()
    terminal = Console(file=drawn, force_terminal=True, color_system=None, width=100, legacy_windows=False)
    monkeypatch.setattr(jobs, "stderr", terminal)
    monkeypatch.setattr(
        jobs, "Progress", lambda *columns, **options: EveryUpdate(*columns, **options, auto_refresh=False)
    )
    monkeypatch.setattr(jobs.time, "sleep", lambda seconds: None)
    return drawn


def tell(retune: CommandLine, *story: dict) -> None:
    told = iter(story)
    retune.answers["GET /fine_tuning/jobs/ftjob-1"] = lambda request: httpx.Response(200, json=next(told))


def bars(screen: io.StringIO) -> list[str]:
    """Each bar once, without the moves of the cursor and the clock."""
    drawn = screen.getvalue().replace("\x1b[2K", "\n").replace("\r", "\n")
    seen = [" ".join(line.split()[:-1]) for line in lines(drawn) if ":" in line]
    return list(dict.fromkeys(seen))


def told(bar: str) -> str:
    return " ".join(bar.replace("━", " ").replace("╸", " ").replace("╺", " ").split())


def test_it_follows_the_job_to_its_end(retune, screen):
    tell(retune, *STORY, a_job("succeeded", 40, 40, **DONE))
    code, out, _ = retune.run("jobs", "watch", "ftjob-1")
    assert (code, out) == (0, "ftjob-1 succeeded: ft:tiny:acme:docs:1f2e3d4c\n")
    shown = [told(bar) for bar in bars(screen)]
    for expected in (
        "validating",
        "queued 0 of 1 nodes free",
        "running step 10 of 40",
        "running step 20 of 40",
        "evaluating step 40 of 40",
        "succeeded step 40 of 40",
    ):
        assert expected in shown


def test_the_bar_is_as_full_as_the_job_is_done(retune, screen, monkeypatch):
    shares = []

    class Noted(EveryUpdate):
        def update(self, *arguments: object, **changes: object) -> None:
            super().update(*arguments, **changes)
            shares.append((self.tasks[0].total, round(self.tasks[0].percentage)))

    monkeypatch.setattr(
        jobs, "Progress", lambda *columns, **options: Noted(*columns, **options, auto_refresh=False)
    )
    tell(retune, *STORY, a_job("succeeded", 40, 40, **DONE))
    retune.run("jobs", "watch", "ftjob-1")
    assert shares == [(None, 0), (40, 0), (40, 25), (40, 50), (40, 100), (40, 100)]


@pytest.mark.parametrize("phase", ["failed", "cancelled"])
def test_a_job_that_did_not_succeed_ends_with_1_and_why(retune, screen, phase):
    tell(retune, *STORY, a_job(phase, 20, 40, error={"message": "loss is NaN at step 21"}))
    code, out, err = retune.run("jobs", "watch", "ftjob-1")
    assert (code, out, err) == (1, "", f"ftjob-1 {phase}: loss is NaN at step 21\n")


def test_machines_get_the_last_answer_alone(retune, screen):
    end = a_job("succeeded", 40, 40, **DONE)
    tell(retune, *STORY, end)
    code, out, _ = retune.run("--json", "jobs", "watch", "ftjob-1")
    assert (code, json.loads(out)) == (0, end)
