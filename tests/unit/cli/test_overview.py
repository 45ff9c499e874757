"""`retune` alone, `jobs compare`, and the curve of `jobs watch`."""

import io
import json

import httpx
import pytest
from rich.console import Console

from cli.commands import context, jobs
from cli.commands.bar import Bar
from cli.commands.sparkline import BLOCKS, sparkline
from tests.unit.cli.test_watch import BLOCKED, DONE, NAME, a_job

STEP = {"step": 3, "loss": 2.5, "learning_rate": 1e-4, "grad_norm": 1.0, "tokens_per_second": 10.0}


def a_result(job_id: str, *, recipe: dict[str, object], dataset_version: str = "d" * 64) -> dict[str, object]:
    job = a_job("succeeded", gate="passed", is_usable=True, is_deployed=True, fine_tuned_model=NAME)
    job["retune"] |= {
        "recipe": recipe,
        "last_step": 40,
        "num_steps": 40,
        "dataset_version": dataset_version,
        "cost_usd": "0.12",
    }
    files = {"training_file": "file-1", "validation_file": None}
    return job | files | {"id": job_id, "model": "tiny", "trained_tokens": 12345}


class TestRetuneAlone:
    @pytest.fixture
    def platform(self, retune):
        for path in ("fine_tuning/jobs", "models", "deployments", "alerts"):
            retune.answers[f"GET /{path}"] = {"data": []}
        return retune

    def run(self, platform):
        code, out, _ = platform.run()
        assert code == 0
        return dict(line.split(None, 1) for line in out.splitlines() if not line.startswith(" "))

    def test_begins_with_a_base_model_and_then_a_job(self, platform):
        shown = self.run(platform)
        assert shown["platform"] == "http://platform.test/v1"
        assert shown["jobs"] == shown["deployments"] == "none"
        assert shown["next"].startswith("`retune models register-base NAME FOLDER`")
        platform.answers["GET /models"] = {"data": [{"id": "tiny"}]}
        assert self.run(platform)["next"].startswith("`retune jobs submit rows.jsonl --model tiny --watch`")
        [*_, asked] = [each for each in platform.requests if each.url.path == "/v1/models"]
        assert asked.url.params["type"] == "base"

    def test_shows_what_is_under_way_and_how_to_follow_it(self, platform):
        running = a_job("running", 10, 40) | {"id": "ftjob-2"}
        platform.answers["GET /models"] = {"data": [{"id": "tiny"}]}
        platform.answers["GET /fine_tuning/jobs"] = {"data": [DONE, running, BLOCKED]}
        platform.answers["GET /deployments"] = {"data": [{"status": "ready"}, {"status": "ready"}]}
        platform.answers["GET /alerts"] = {"data": [{}]}
        code, out, _ = platform.run()
        assert code == 0
        assert "  ftjob-2 running: step 10 of 40" in out
        shown = self.run(platform)
        assert shown["jobs"] == "2 succeeded, 1 running"
        assert (shown["deployments"], shown["alerts"]) == ("2 ready", "1 open")
        assert shown["next"].startswith("`retune jobs watch ftjob-2`")

    @pytest.mark.parametrize(
        ("job", "expected"), [(DONE, f"ask {NAME} for an answer"), (BLOCKED, "`retune models evaluation")]
    )
    def test_after_the_newest_job_shows_what_comes_of_it(self, platform, job, expected):
        platform.answers["GET /models"] = {"data": [{"id": "tiny"}]}
        platform.answers["GET /fine_tuning/jobs"] = {"data": [job]}
        assert expected in self.run(platform)["next"]

    def test_is_json_for_programs(self, platform):
        code, out, _ = platform.run("--json")
        assert (code, json.loads(out)) == (
            0,
            {"jobs": [], "base_models": [], "deployments": [], "alerts": []},
        )

    def test_without_a_platform_shows_how_to_start_one(self, retune, monkeypatch, tmp_path):
        monkeypatch.delenv("RETUNE_BASE_URL")
        monkeypatch.setenv("RETUNE_STATE", str(tmp_path))
        context.connection.cache_clear()
        code, _, err = retune.run()
        assert code == 3
        assert "start one with `retune up`" in err
        assert "`retune --help` lists all commands" in err


class TestCompare:
    def answer(self, retune, *results):
        for job, metrics in results:
            retune.answers[f"GET /fine_tuning/jobs/{job['id']}"] = job
            page = [{"metrics": metrics}] if metrics else []
            retune.answers[f"GET /fine_tuning/jobs/{job['id']}/checkpoints"] = {"data": page}

    def test_shows_results_and_the_settings_that_differ(self, retune):
        slow = a_result("ftjob-1", recipe={"method": "lora", "lora": {"rank": 8}, "learning_rate": 1e-4})
        fast = a_result("ftjob-2", recipe={"method": "lora", "lora": {"rank": 32}, "learning_rate": 2e-4})
        self.answer(
            retune, (slow, {"valid_loss": 2.5, "full_valid_loss": 2.25, "perplexity": 9.4877}), (fast, None)
        )
        code, out, err = retune.run("jobs", "compare", "ftjob-1", "ftjob-2")
        assert code == 0
        row_of = {line.split("  ")[0].strip(): line.split() for line in out.splitlines()}
        assert row_of["recipe.lora.rank"] == ["recipe.lora.rank", "8", "32"]
        assert row_of["recipe.learning_rate"][1:] == ["1e-4", "2e-4"]
        assert row_of["validation loss"][2:] == ["2.2500", "–"]
        assert row_of["perplexity"][1:] == ["9.488", "–"]
        assert row_of["trained tokens"][2:] == ["12,345", "12,345"]
        assert "recipe.method" not in row_of
        assert "not comparable" not in err
        assert "5 settings are equal in all" in err

    def test_shows_why_losses_cannot_be_compared(self, retune):
        first = a_result("ftjob-1", recipe={"method": "lora"})
        other = a_result("ftjob-2", recipe={"method": "lora"}, dataset_version="e" * 64)
        self.answer(retune, (first, None), (other, None))
        _, out, err = retune.run("jobs", "compare", "ftjob-1", "ftjob-2")
        assert "dataset version" in out
        assert "their losses are not comparable: other data" in err

    def test_says_where_they_start_from_other_models(self, retune):
        first, other = (a_result(job_id, recipe={}) for job_id in ("ftjob-1", "ftjob-2"))
        self.answer(retune, (first, None), (other | {"model": NAME}, None))
        _, _, err = retune.run("jobs", "compare", "ftjob-1", "ftjob-2")
        assert "they start from other models" in err

    def test_needs_two_jobs(self, retune):
        code, _, err = retune.run("jobs", "compare", "ftjob-1")
        assert code == 2
        assert "expected two at least" in err


class TestCurve:
    def test_is_as_high_as_its_values(self):
        assert sparkline([]) == ""
        assert sparkline([1.0, 1.0]) == BLOCKS[0] * 2
        assert sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == BLOCKS
        assert sparkline([0.0] * 50 + [1.0] * 50, width=4) == BLOCKS[0] * 2 + BLOCKS[-1] * 2

    def test_is_of_the_steps_that_are_recorded_and_begins_again_where_a_job_was_resumed(
        self, retune, monkeypatch
    ):
        seen = []

        class Noted(Bar):
            def show(self, description, doing, details, *, done, total):
                seen.append(details.splitlines()[0] if details else "")

        drawn = Console(file=io.StringIO(), force_terminal=True, width=100, legacy_windows=False)
        monkeypatch.setattr(jobs, "stderr", drawn)
        monkeypatch.setattr(jobs, "Bar", Noted)
        monkeypatch.setattr(jobs.time, "sleep", lambda seconds: None)
        losses = {1: 4.0, 2: 3.0, 3: 2.0, 4: 1.0}

        def metrics(request: httpx.Request) -> httpx.Response:
            after = int(request.url.params["after_step"])
            return httpx.Response(
                200,
                json={
                    "data": [
                        {"step": step, "loss": losses[step]} for step in losses if after < step <= newest
                    ]
                },
            )

        states = iter([3, 4, 2])
        retune.answers["GET /fine_tuning/jobs/ftjob-1/metrics"] = metrics

        def job(request: httpx.Request) -> httpx.Response:
            nonlocal newest
            newest = next(states, None)
            if newest is None:
                return httpx.Response(200, json=DONE)
            step = STEP | {"step": newest, "loss": losses[newest]}
            return httpx.Response(200, json=a_job("running", newest, 4, newest_step=step))

        newest = 0
        retune.answers["GET /fine_tuning/jobs/ftjob-1"] = job
        code, _, _ = retune.run("jobs", "watch", "ftjob-1")
        assert code == 0
        assert [curve for curve in seen if curve] == ["█▅▁", "█▆▃▁", "█▁"]


def test_a_list_of_jobs_asks_for_no_page_that_is_not_shown(retune):
    listed = [a_result(each, recipe={}) | {"created_at": 1_764_410_400} for each in ("ftjob-1", "ftjob-2")]
    answer = {"data": listed, "has_more": True, "last_id": "ftjob-2"}
    retune.answers["GET /fine_tuning/jobs"] = answer
    _, out, err = retune.run("jobs", "list", "--limit", "1")
    assert len(out.splitlines()) == 2
    assert err.strip() == "the newest 1; `--limit` takes another number"
    assert "2025-11-29 10:00:00" in out
    assert len(retune.requests) == 1
