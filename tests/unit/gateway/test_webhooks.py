"""Webhooks: signatures, events, where they may go, and when they are tried again."""

import base64
import ipaddress
import json
from dataclasses import replace
from datetime import timedelta

import openai
import pytest
from openai.types.webhooks import FineTuningJobSucceededWebhookEvent

from schemas.base import CommandRefused
from schemas.job import JobRunning, JobSucceeded
from schemas.sweep import SweepEnded, TrialEnded
from schemas.topics import TENANT_FACT_TYPES
from services.gateway.webhooks import destinations, events, signing
from services.gateway.webhooks.decide import BackOff, after_attempt
from services.gateway.webhooks.destinations import InvalidUrl, is_allowed, parse_url
from services.gateway.webhooks.events import EVENTS, event_of, sample_event
from services.gateway.webhooks.model import Delivery, Endpoint, Result
from shared.clock import utc_now
from tests.builders import NOON

ROOT = "secret of the environment"


def an_endpoint(**changes) -> Endpoint:
    columns = dict.fromkeys(Endpoint.model_fields)
    known = {
        "endpoint_id": "whe_1",
        "tenant": "demo",
        "name": "ours",
        "url": "https://example.com/hook",
        "event_types": (),
        "nonce": "one",
        "is_enabled": True,
        "disabled_reason": "",
        "created_at": NOON,
        "updated_at": NOON,
    }
    return Endpoint(**(columns | known | changes))


def a_delivery(**changes) -> Delivery:
    columns = dict.fromkeys(Delivery.model_fields)
    known = {
        "delivery_id": "whd_1",
        "endpoint_id": "whe_1",
        "event_id": "evt_1",
        "event_type": "ping",
        "subject": "ftjob-1",
        "body": "{}",
        "state": "pending",
        "attempts": 0,
        "error": "",
        "created_at": NOON,
    }
    return Delivery(**(columns | known | changes))


class TestSignatures:
    def test_are_those_of_the_specifications_example(self):
        """The example of the libraries of Standard Webhooks."""
        signed = signing.signature(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            event_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
            timestamp=1614265330,
            body=b'{"test": 2432232314}',
        )
        assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

    @pytest.mark.parametrize("which", [0, 1])
    def test_of_both_secrets_are_verified_by_the_official_client(self, which):
        now = utc_now()
        endpoint = an_endpoint(previous_nonce="zero", previous_until=now + timedelta(seconds=1))
        secrets = signing.secrets_of(endpoint, ROOT, now=now)
        succeeded = JobSucceeded(
            job_id="ftjob-1", tenant="demo", fine_tuned_model=None, model_id=None, promoted=True, deployed=True,
            message="done: é",
        )  # fmt: skip
        event = event_of(succeeded, event_id="1", time=now)
        headers = signing.signed_headers(secrets, event_id=event.id, now=now, body=event.body.encode())
        unwrapped = openai.OpenAI(api_key="x").webhooks.unwrap(
            event.body.encode(), headers, secret=secrets[which]
        )
        assert unwrapped == FineTuningJobSucceededWebhookEvent.model_validate(
            {
                "id": "evt_1",
                "object": "event",
                "type": "fine_tuning.job.succeeded",
                "created_at": int(now.timestamp()),
                "data": {"id": "ftjob-1"},
            }
        )

    def test_of_another_secret_or_body_are_refused_by_the_official_client(self):
        now, client = utc_now(), openai.OpenAI(api_key="x")
        secret, other = (signing.signing_secret(ROOT, "whe_1", nonce) for nonce in ("one", "two"))
        headers = signing.signed_headers([secret], event_id="evt_1", now=now, body=b"{}")
        for body, known in ((b"{}", other), (b"{ }", secret)):
            with pytest.raises(openai.InvalidWebhookSignatureError):
                client.webhooks.unwrap(body, headers, secret=known)

    def test_of_the_old_secret_end_when_it_does(self):
        endpoint = an_endpoint(previous_nonce="zero", previous_until=NOON)
        assert signing.secrets_of(endpoint, ROOT, now=NOON) == [signing.signing_secret(ROOT, "whe_1", "one")]

    def test_are_made_with_secrets_of_32_bytes_each_of_its_own(self):
        keys = (
            (ROOT, "whe_1", "one"),
            (ROOT, "whe_1", "two"),
            (ROOT, "whe_2", "one"),
            ("other", "whe_1", "one"),
        )
        secrets = {signing.signing_secret(*key) for key in keys}
        assert len(secrets) == 4
        assert {len(base64.b64decode(secret.removeprefix("whsec_"))) for secret in secrets} == {32}
        for secret in secrets:
            assert signing.hint(secret) == f"whsec_…{secret[-4:]}"


class TestEvents:
    def test_are_of_facts_that_a_tenant_may_read(self):
        assert EVENTS.keys() <= {*TENANT_FACT_TYPES}
        assert len({event_type for event_type, _ in EVENTS.values()}) == len(EVENTS)
        for fact, (_, id_field) in EVENTS.items():
            assert {id_field, "tenant"} <= fact.model_fields.keys(), fact

    def test_of_ours_have_ids_and_a_sentence(self):
        event = event_of(JobRunning(job_id="ftjob-1", tenant="demo", attempt=2), event_id="9", time=NOON)
        assert (event.id, event.type, event.subject) == ("evt_9", "retune.job.running", "ftjob-1")
        assert json.loads(event.body) == {
            "id": "evt_9",
            "object": "event",
            "type": "retune.job.running",
            "created_at": int(NOON.timestamp()),
            "data": {"id": "ftjob-1", "job_id": "ftjob-1", "message": "attempt 2 is training"},
        }

    def test_of_sweeps_say_what_came_of_trials(self):
        ended = SweepEnded(
            sweep_id="sweep-1",
            tenant="demo",
            state="failed",
            best=None,
            best_valid_loss=None,
            num_trials=8,
            cost="4",
            message="no trial has a loss",
        )
        event = event_of(ended, event_id="9", time=NOON)
        message = "sweep failed after 8 trials: no trial has a loss"
        assert (event.type, event.subject) == ("retune.sweep.ended", "sweep-1")
        assert json.loads(event.body)["data"] == {"id": "sweep-1", "sweep_id": "sweep-1", "message": message}
        trial = TrialEnded(
            sweep_id="sweep-1", tenant="demo", number=3, job_id="ftjob-1", state="pruned", valid_loss=1.5
        )
        event = event_of(trial, event_id="9", time=NOON)
        assert (event.type, event.subject) == ("retune.sweep.trial_ended", "ftjob-1")
        assert json.loads(event.body)["data"]["sweep_id"] == "sweep-1"

    def test_of_refusals_have_their_code_and_a_message_of_bounded_length(self):
        refused = CommandRefused(
            subject_id="ftjob-1",
            command="CancelJob",
            command_id="c",
            code="no",
            message="x" * 2_000,
            tenant="demo",
        )
        data = json.loads(event_of(refused, event_id="9", time=NOON).body)["data"]
        assert (data["id"], data["code"], len(data["message"])) == ("ftjob-1", "no", 1_000)

    def test_are_not_of_every_fact(self):
        stopping = next(fact for fact in TENANT_FACT_TYPES if fact.__name__ == "JobStopping")
        assert stopping not in EVENTS
        assert event_of(stopping.model_construct(job_id="j", tenant="t"), event_id="9", time=NOON) is None

    @pytest.mark.parametrize("event_type", ["ping", "fine_tuning.job.failed", "retune.gate.passed"])
    def test_of_tests_are_about_nothing_that_there_is(self, event_type):
        event = sample_event(event_type, endpoint_id="whe_1", event_id="9", time=NOON)
        assert (event.type, json.loads(event.body)["data"]["id"]) == (event_type, "whe_1-test")


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "host", "port", "target", "authority"),
        [
            ("https://example.com", "example.com", 443, "/", "example.com"),
            ("https://Example.com:8443/a?b=c", "example.com", 8443, "/a?b=c", "example.com:8443"),
            ("https://192.0.2.1/x", "192.0.2.1", 443, "/x", "192.0.2.1"),
            ("https://[2001:DB8::1]:9000/", "2001:db8::1", 9000, "/", "[2001:db8::1]:9000"),
            ("https://a_b.example-1.com", "a_b.example-1.com", 443, "/", "a_b.example-1.com"),
        ],
    )
    def test_are_taken_apart(self, url, host, port, target, authority):
        destination = parse_url(url, allow_http=False)
        assert (destination.host, destination.port, destination.target) == (host, port, target)
        assert destination.authority == authority

    @pytest.mark.parametrize(
        "url",
        [
            *("", "example.com", "ftp://example.com", "file:///etc/passwd", "gopher://example.com"),
            *("http://example.com", "https://", "https:///x", "//example.com", "https://" + "a" * 2_100),
            # The spellings of 127.0.0.1 and of other addresses that programs in C understand.
            *(
                "https://2130706433",
                "https://0x7f000001",
                "https://0177.0.0.1",
                "https://127.1",
                "https://0x7f.1",
            ),
            *(
                "https://127.0.0.01",
                "https://1.2.3.4.5",
                "https://256.1.1.1",
                "https://127.0.0.1.",
                "https://0",
            ),
            *("https://１２７.０.０.１", "https://①②⑦.0.0.1", "https://bücher.example"),
            *("https://[::1", "https://[fe80::1%25eth0]/", "https://[v1.a]/", "https://[1.2.3.4]x/"),
            *("https://user@example.com", "https://a:b@example.com", "https://example.com#x"),
            *("https://example.com:22", "https://example.com:80", "https://example.com:0"),
            *(
                "https://example.com:99999",
                "https://example.com:x",
                "https://exa mple.com",
                "https://a\r\nb.c",
            ),
            *(
                "https://example.com\\@127.0.0.1/",
                "https://-a.com",
                "https://a..com",
                "https://example.com/é",
            ),
        ],
    )
    def test_are_refused_with_a_reason(self, url):
        with pytest.raises(InvalidUrl, match=" "):
            parse_url(url, allow_http=False)

    def test_may_be_without_tls_where_the_operator_allows_it(self):
        destination = parse_url("http://example.com", allow_http=True)
        assert (destination.port, destination.authority) == (80, "example.com")
        with pytest.raises(InvalidUrl, match="443"):
            parse_url("https://example.com:80", allow_http=True)


class TestAddresses:
    @pytest.mark.parametrize("text", ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
    def test_of_the_internet_are_allowed(self, text):
        assert is_allowed(ipaddress.ip_address(text), ())

    @pytest.mark.parametrize(
        "text",
        [
            *("127.0.0.1", "127.255.255.254", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255"),
            *("192.168.1.1", "169.254.169.254", "100.64.0.1", "192.0.2.1", "198.18.0.1", "203.0.113.9"),
            *("224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "192.0.0.1"),
            *("::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1"),
            *("fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "100::1"),
            *("64:ff9b::7f00:1", "64:ff9b:1::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::"),
        ],
    )
    def test_of_anything_else_are_not(self, text):
        assert not is_allowed(ipaddress.ip_address(text), ())

    def test_of_a_network_that_the_operator_names_are_allowed_mapped_or_not(self):
        networks = (ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00::/8"))
        allowed = ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1", "8.8.8.8")
        assert all(is_allowed(ipaddress.ip_address(text), networks) for text in allowed)
        assert not any(
            is_allowed(ipaddress.ip_address(text), networks) for text in ("10.2.0.1", "::1", "127.0.0.1")
        )

    def test_of_one_host_are_all_allowed_or_none_is(self):
        public, private = map(ipaddress.ip_address, ("8.8.8.8", "10.0.0.1"))
        assert not destinations.all_allowed([public, private], ())
        assert destinations.all_allowed([public, public], ())


class TestWhatFollowsFromAnAttempt:
    BACK_OFF = BackOff(shortest=timedelta(seconds=5))
    AGO = timedelta(days=3)

    def outcome(self, result, *, delivery=None, endpoint=None, jitter=0.0):
        delivery, endpoint = delivery or a_delivery(), endpoint or an_endpoint()
        return after_attempt(delivery, endpoint, result, now=NOON, jitter=jitter, back_off=self.BACK_OFF)

    @pytest.mark.parametrize("status", [200, 201, 204, 299])
    def test_a_good_answer_ends_it_and_the_failing_of_the_endpoint(self, status):
        outcome = self.outcome(Result(status), endpoint=an_endpoint(failing_since=NOON - self.AGO))
        assert (outcome.state, outcome.failing_since, outcome.label) == ("delivered", None, "delivered")

    @pytest.mark.parametrize(
        "result", [Result(199), Result(302), Result(404), Result(500), Result(error="x")]
    )
    def test_any_other_is_tried_again(self, result):
        outcome = self.outcome(result)
        assert (outcome.state, outcome.label, outcome.failing_since) == ("pending", "retried", NOON)
        assert outcome.due_at == NOON + timedelta(seconds=5)
        assert not outcome.disabled_reason

    def test_pauses_double_up_to_an_hour_and_are_spread(self):
        pauses = [self.BACK_OFF.pause(attempts, 0.0).total_seconds() for attempts in range(1, 12)]
        assert pauses == [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600]
        assert self.BACK_OFF.pause(1_000_000, 0.0) == timedelta(hours=1)
        assert self.BACK_OFF.pause(2, 1.0) == timedelta(seconds=5)

    def test_three_days_of_attempts_are_some_eighty(self):
        at, attempts = timedelta(), 0
        while at < self.BACK_OFF.limit:
            attempts += 1
            at += self.BACK_OFF.pause(attempts, 0.0)
        assert 75 < attempts < 90

    def test_after_three_days_it_has_failed(self):
        old = a_delivery(first_attempt_at=NOON - self.AGO, attempts=80)
        recent = an_endpoint(failing_since=NOON - timedelta(hours=1))
        outcome = self.outcome(Result(500), delivery=old, endpoint=recent)
        assert (outcome.state, outcome.due_at, outcome.disabled_reason) == ("failed", None, "")
        assert outcome.failing_since == recent.failing_since
        young = replace(outcome, state="pending")
        assert self.outcome(Result(500), delivery=a_delivery(first_attempt_at=NOON)).state == young.state

    def test_an_endpoint_that_took_nothing_for_three_days_is_switched_off(self):
        old = a_delivery(first_attempt_at=NOON - self.AGO, attempts=80)
        endpoint = an_endpoint(failing_since=NOON - self.AGO)
        assert self.outcome(Result(500), delivery=old, endpoint=endpoint).disabled_reason.endswith(
            ": status 500"
        )
        outcome = self.outcome(Result(error="no answer"), delivery=old, endpoint=endpoint)
        assert "nothing was delivered since 2027-02-26" in outcome.disabled_reason
        assert outcome.disabled_reason.endswith(": no answer")

    def test_an_endpoint_that_is_gone_is_switched_off_at_once(self):
        outcome = self.outcome(Result(410))
        assert (outcome.state, outcome.disabled_reason) == ("failed", "the endpoint answered 410 Gone")
        assert outcome.failing_since == NOON


def test_the_types_to_choose_from_are_those_of_the_events():
    assert {"fine_tuning.job.succeeded", "fine_tuning.job.failed", "fine_tuning.job.cancelled"} <= {
        *events.EVENT_TYPES
    }
    assert events.PING not in events.EVENT_TYPES
