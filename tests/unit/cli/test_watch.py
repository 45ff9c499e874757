"""`jobs watch`: a bar that goes as the job goes, on stderr, and an end that scripts can read."""

import io
import json
import time

import httpx
import pytest
from rich.console import Console

from cli.commands import jobs
from cli.commands.bar import Bar
from cli.commands.watch import details, doing, in_short, line, mark, state_of
from tests.unit.cli.commandline import CommandLine, lines

NAME = "ft:tiny:acme:docs:1f2e3d4c"


def a_job(state: str, step: int = 0, of: int | None = None, waiting_for: str = "", **changes: object):
    """As the gateway shows it; `gate`, `is_usable` and `progress` are among the changes."""
    training = {"activity": "training", "part": "", "done": step, "total": of, "unit": "steps"}
    ours = {
        "state": state,
        "gate": {"status": changes.pop("gate", "pending")},
        "is_usable": changes.pop("is_usable", False),
        "is_deployed": changes.pop("is_deployed", False),
        "progress": changes.pop("progress", training | {"seconds_left": None} if of and step else None),
        "waiting_for": waiting_for,
        "queue": changes.pop("queue", None),
        "recipe": {"method": changes.pop("method", "lora")},
        "newest_step": changes.pop("newest_step", None),
    }
    return {"id": "ftjob-1", "fine_tuned_model": None, "error": {}, "retune": ours, **changes}


GATE = {
    "activity": "safety",
    "part": "refusals",
    "side": "candidate",
    "done": 0,
    "total": 120,
    "unit": "items",
    "seconds_left": 41.2,
}
DONE = a_job("succeeded", gate="passed", is_usable=True, is_deployed=True, fine_tuned_model=NAME)
BLOCKED = a_job(
    "succeeded",
    gate="failed",
    fine_tuned_model=NAME,
    error={"code": "gate_failed", "message": "the gate failed: safety: refusals 46.67, expected at least 95"},
)


STORY = (
    a_job("validating"),
    a_job("queued", waiting_for="0 of 1 nodes free"),
    a_job("running", 10, 40),
    a_job("running", 20, 40),
    a_job("evaluating"),
    a_job("evaluating", progress=GATE | {"done": 30}),
)


class EveryUpdate(Bar):
    """Draws at each update, not by its own clock."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, auto_refresh=False)

    def update(self, *arguments: object, **changes: object) -> None:
        super().update(*arguments, **changes, refresh=True)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    drawn = io.StringIO()
    terminal = Console(file=drawn, force_terminal=True, color_system=None, width=100, legacy_windows=False)
    monkeypatch.setattr(jobs, "stderr", terminal)
    monkeypatch.setattr(jobs, "Bar", EveryUpdate)
    monkeypatch.setattr(jobs.time, "sleep", lambda seconds: None)
    return drawn


def tell(retune: CommandLine, *story: dict) -> None:
    states = iter(story)
    retune.answers["GET /fine_tuning/jobs/ftjob-1"] = lambda request: httpx.Response(200, json=next(states))


def bars(screen: io.StringIO) -> list[str]:
    """Each bar once, without the moves of the cursor and the clock."""
    drawn = screen.getvalue().replace("\x1b[2K", "\n").replace("\r", "\n")
    seen = [" ".join(line.split()[:-1]) for line in lines(drawn) if ":" in line]
    return list(dict.fromkeys(seen))


def text_of(bar: str) -> str:
    return " ".join(bar.replace("━", " ").replace("╸", " ").replace("╺", " ").split())


def test_it_follows_the_job_to_its_end(retune, screen):
    tell(retune, *STORY, DONE)
    code, out, _ = retune.run("jobs", "watch", "ftjob-1")
    assert (code, out) == (0, f"ftjob-1 succeeded, gate passed: {NAME}\n")
    shown = [text_of(bar) for bar in bars(screen)]
    for expected in (
        "validating",
        "queued 0 of 1 nodes free",
        "running step 10 of 40",
        "running step 20 of 40",
        "evaluating",
        "evaluating safety refusals, 30 of 120 items, about 41 s left",
        "succeeded, gate passed",
    ):
        assert expected in shown


def test_the_bar_is_as_full_as_the_job_is_done(retune, screen, monkeypatch):
    shares = []

    class Noted(EveryUpdate):
        def update(self, *arguments: object, **changes: object) -> None:
            super().update(*arguments, **changes)
            shares.append((self.tasks[0].total, round(self.tasks[0].percentage)))

    monkeypatch.setattr(jobs, "Bar", Noted)
    tell(retune, *STORY, DONE)
    retune.run("jobs", "watch", "ftjob-1")
    assert shares == [(None, 0), (None, 0), (40, 25), (40, 50), (None, 0), (120, 25), (None, 0)]


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_job_that_did_not_succeed_ends_with_1_and_why(retune, screen, state):
    tell(retune, *STORY, a_job(state, 20, 40, error={"message": "loss is NaN at step 21"}))
    code, out, err = retune.run("jobs", "watch", "ftjob-1")
    assert (code, out, err) == (1, "", f"ftjob-1 {state}: loss is NaN at step 21\n")


def test_machines_get_the_last_answer_alone(retune, screen):
    tell(retune, *STORY, DONE)
    code, out, _ = retune.run("--json", "jobs", "watch", "ftjob-1")
    assert (code, json.loads(out)) == (0, DONE)


def test_a_job_whose_model_the_gate_blocked_ends_with_1_why_and_what_to_do(retune, screen):
    tell(retune, *STORY, BLOCKED)
    code, out, err = retune.run("jobs", "watch", "ftjob-1")
    assert (code, out) == (1, "")
    why, what_next = err.splitlines()
    assert why == (
        "ftjob-1 succeeded, gate failed, but its model is not usable: "
        "the gate failed: safety: refusals 46.67, expected at least 95"
    )
    assert what_next.startswith("next: ")
    assert f"retune models evaluation {NAME}" in what_next


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("gate_inconclusive", f"`retune models evaluate {NAME}` measures again"),
        ("not_deployed", f"`retune deployments deploy {NAME}`"),
        ("no_model", "`retune jobs events ftjob-1`"),
    ],
)
def test_every_end_without_a_usable_model_says_what_to_do(retune, screen, code, expected):
    tell(
        retune, a_job("succeeded", gate="passed", fine_tuned_model=NAME, error={"code": code, "message": "x"})
    )
    exit_code, _, err = retune.run("jobs", "watch", "ftjob-1")
    assert exit_code == 1
    assert expected in err.splitlines()[1]


def test_the_verdict_of_an_ended_job_is_waited_for(retune, screen):
    tell(retune, a_job("succeeded"), a_job("succeeded"), DONE)
    assert retune.run("jobs", "watch", "ftjob-1")[0] == 0


def test_a_verdict_that_never_comes_is_not_waited_for_for_ever(retune, screen):
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, json=a_job("succeeded", fine_tuned_model=NAME))

    retune.answers["GET /fine_tuning/jobs/ftjob-1"] = answer
    code, _, err = retune.run("jobs", "watch", "ftjob-1")
    assert (code, len(asked)) == (1, jobs.VERDICT_SECONDS / jobs.POLL_SECONDS)
    assert "not usable: no reason is known" in err


def test_a_model_that_was_not_to_be_deployed_is_usable(retune, screen):
    tell(retune, a_job("succeeded", gate="passed", is_usable=True, fine_tuned_model=NAME))
    code, out, _ = retune.run("jobs", "watch", "ftjob-1")
    assert code == 0
    assert f"(not deployed, as asked: `retune deployments deploy {NAME}`)" in out


def test_where_output_is_no_terminal_changes_alone_are_printed(retune, monkeypatch):
    monkeypatch.setattr(jobs.time, "sleep", lambda seconds: None)
    gate = [
        a_job("evaluating", progress=GATE | {"done": done, "seconds_left": 120 - done}) for done in range(120)
    ]
    running = [a_job("running", step, 40) for step in range(1, 41) for _ in range(3)]
    tell(retune, a_job("validating"), a_job("validating"), *running, *gate, DONE)
    code, _, err = retune.run("jobs", "watch", "ftjob-1")
    assert code == 0
    lines = err.splitlines()
    assert len(lines) == len(set(lines)) == 1 + 11 + 10 + 1
    assert lines[0] == "validating"
    assert lines[1] == "running: step 1 of 40"
    assert lines[12] == "evaluating: safety refusals, 0 of 120 items, about 2 min left"
    assert lines[-1] == "succeeded, gate passed"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"activity": "loading", "part": "", "side": None, "total": None, "seconds_left": None}, "loading"),
        ({"side": "base"}, "safety refusals of the base model, 0 of 120 items, about 41 s left"),
        (
            {"activity": "holdout", "part": "", "seconds_left": 600.0},
            "holdout, 0 of 120 items, about 10 min left",
        ),
    ],
)
def test_the_gate_says_what_it_measures(changes, expected):
    assert doing(a_job("evaluating", progress=GATE | changes)) == expected


SHOWN_TIME = time.strftime("%H:%M", time.localtime(1_800_000_000))


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        (None, "0 of 1 nodes free"),
        ({"position": None, "estimated_start": None}, "0 of 1 nodes free"),
        ({"position": 3, "estimated_start": None}, "place 3 in the queue, 0 of 1 nodes free"),
        (
            {"position": 3, "estimated_start": 1_800_000_000},
            f"place 3 in the queue, start expected at {SHOWN_TIME}, 0 of 1 nodes free",
        ),
    ],
)
def test_a_queued_job_says_where_it_stands(queue, expected):
    assert doing(a_job("queued", waiting_for="0 of 1 nodes free", queue=queue)) == expected


@pytest.mark.parametrize(
    ("loss", "expected"), [(None, "step 10 of 40"), (2.25, "step 10 of 40, validation loss 2.2500")]
)
def test_training_shows_its_newest_validation_loss(loss, expected):
    job = a_job("running", 10, 40)
    job["retune"]["progress"]["valid_loss"] = loss
    assert doing(job) == expected


STEP = {
    "step": 10,
    "attempt": 1,
    "loss": 2.5,
    "learning_rate": 1.8734e-4,
    "grad_norm": 0.8231,
    "tokens_per_second": 16_584.2,
    "memory_bytes": 13 * 2**29,
    "mfu": 0.381,
    "device_utilization": 0.97,
}
PAIRS = {"chosen_reward": 0.2, "rejected_reward": -0.2123, "reward_margin": 0.4123, "reward_accuracy": 0.8412}
USED = "rate 1.87e-4 · norm 0.823 · 16,584 tokens/s · MFU 38.1% · device 97% · 6.5 GiB"


def training(method: str = "lora", valid_loss: float | None = None, **numbers: object) -> dict:
    job = a_job("running", 10, 40, method=method, newest_step=STEP | numbers)
    job["retune"]["progress"] |= {"seconds_left": 312.0, "valid_loss": valid_loss}
    return job


@pytest.mark.parametrize(
    ("job", "measured"),
    [
        (training(), None),
        (training(valid_loss=2.25), "validation loss 2.2500"),
        (training("dpo", **PAIRS), "chosen answers preferred in 84.1% by 0.412"),
        (training("cpt", valid_loss=2.25), "perplexity 12.18 · validation loss 2.2500"),
    ],
    ids=["lora", "validated", "dpo", "cpt"],
)
def test_training_shows_loss_and_time_left_and_below_them_all_that_is_measured(job, measured):
    assert in_short(job) == "step 10 of 40, loss 2.5000, about 5 min left"
    assert details(job).splitlines() == [*filter(None, [measured]), USED]
    words = f"{measured.replace(' · ', ', ')}, " if measured else ""
    assert line(job) == f"running: step 10 of 40, loss 2.5000, {words}about 5 min left"


def test_what_is_measured_is_of_the_stage_that_trains():
    job = training("cpt")
    stages = [{"recipe": {"method": method}} for method in ("cpt", "sft")]
    job["retune"] |= {"stage": 2, "stages": stages}
    assert details(job) == USED
    job["retune"]["stage"] = 1
    assert details(job).splitlines() == ["perplexity 12.18", USED]


def test_what_a_device_does_not_report_is_left_out():
    assert details(training(mfu=None, device_utilization=None)) == (
        "rate 1.87e-4 · norm 0.823 · 16,584 tokens/s · 6.5 GiB"
    )


def test_how_evenly_experts_are_used_is_shown_where_it_is_measured():
    assert details(training("sft", router_loss=2.1093)) == USED.replace(
        "MFU 38.1%", "MFU 38.1% · router 2.11"
    )


def test_details_stand_below_the_bar_and_go_with_the_training(retune, screen):
    retune.answers["GET /fine_tuning/jobs/ftjob-1/metrics"] = {"data": [STEP]}
    tell(retune, training("dpo", **PAIRS), a_job("evaluating"), DONE)
    assert retune.run("jobs", "watch", "ftjob-1")[0] == 0
    drawn = screen.getvalue()
    before, _, after = drawn.rpartition("MFU 38.1%")
    assert "chosen answers preferred in 84.1% by 0.412" in before
    assert "succeeded, gate passed" in after
    assert "preferred" not in after


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(89, "about 89 s left"), (5_399, "about 90 min left"), (12_000, "about 3.3 h left")],
)
def test_long_times_are_shown_in_larger_units(seconds, expected):
    job = training()
    job["retune"]["progress"]["seconds_left"] = seconds
    assert in_short(job).endswith(expected)


@pytest.mark.parametrize(
    ("state", "shown"),
    [("running", "running, stage 2 of 3"), ("evaluating", "evaluating"), ("failed", "failed")],
)
def test_the_stage_is_shown_while_stages_are_trained(state, shown):
    job = a_job(state)
    job["retune"] |= {"stage": 2, "stages": [{}, {}, {}]}
    assert state_of(job) == shown


def test_show_has_the_reasons_of_what_the_recipe_left_open(retune):
    job = a_job("queued")
    job["retune"]["recipe_reasons"] = {"num_epochs": "1: the dataset has 10,000 rows"}
    retune.answers["GET /fine_tuning/jobs/ftjob-1"] = job
    code, out, _ = retune.run("jobs", "show", "ftjob-1")
    assert (code, '"num_epochs": "1: the dataset has 10,000 rows"' in out) == (0, True)


def test_an_alert_is_part_of_the_line_and_of_the_details():
    job = a_job("running", 10, 40)
    job["retune"]["alerts"] = [{"rule": "stall", "message": "no step for 60 s"}]
    assert line(job) == "running: step 10 of 40; alert stall: no step for 60 s"
    assert details(job) == "alert stall: no step for 60 s"
    assert mark(job) != mark(a_job("running", 10, 40))
