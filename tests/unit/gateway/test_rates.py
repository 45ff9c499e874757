import pytest

from services.gateway.quotas import QuotaExceeded, Quotas
from services.gateway.rates import MAX_KEYS, InFlight, Rates


class TestRates:
    def test_let_a_burst_of_ten_seconds_through_and_then_the_rate(self):
        rates = Rates()
        for _ in range(10):
            rates.take("key-1", 60, now=0.0)
        with pytest.raises(QuotaExceeded, match="requests_per_minute"):
            rates.take("key-1", 60, now=0.0)
        rates.take("key-1", 60, now=1.0)

    def test_say_when_to_ask_again(self):
        rates = Rates()
        rates.take("key-1", 6, now=0.0)
        with pytest.raises(QuotaExceeded) as exceeded:
            rates.take("key-1", 6, now=2.0)
        assert exceeded.value.again_in.total_seconds() == pytest.approx(8.0)
        assert exceeded.value.param == "requests_per_minute"

    def test_are_of_one_key_alone(self):
        rates = Rates()
        rates.take("key-1", 1, now=0.0)
        rates.take("key-2", 1, now=0.0)

    def test_save_no_more_than_a_burst(self):
        rates = Rates()
        rates.take("key-1", 60, now=0.0)
        for _ in range(10):
            rates.take("key-1", 60, now=3600.0)
        with pytest.raises(QuotaExceeded):
            rates.take("key-1", 60, now=3600.0)

    def test_of_nothing_are_a_closed_door_and_no_limit_an_open_one(self):
        rates = Rates()
        rates.take("key-1", 0, now=0.0)
        with pytest.raises(QuotaExceeded):
            rates.take("key-1", 0, now=1e6)
        for _ in range(1000):
            rates.take("key-2", None, now=0.0)

    def test_forget_the_key_that_was_still_for_longest(self, monkeypatch):
        monkeypatch.setattr("services.gateway.rates.MAX_KEYS", 2)
        rates = Rates()
        for key in ("a", "b", "a", "c"):
            rates.take(key, 60, now=0.0)
        assert list(rates._buckets) == ["a", "c"]
        assert MAX_KEYS > 2


class TestInFlight:
    def test_gives_a_place_back_when_it_is_left_by_an_error_too(self):
        places = InFlight("streams")
        with pytest.raises(ZeroDivisionError), places.place("acme", 1):
            raise ZeroDivisionError
        with places.place("acme", 1), pytest.raises(QuotaExceeded, match="streams: found 1 under way"):
            places.place("acme", 1).__enter__()
        assert not places._counts

    def test_counts_each_tenant_alone(self):
        places = InFlight("streams")
        with places.place("acme", 1), places.place("other", 1), places.place("free", None):
            pass


def test_a_quota_that_an_older_release_had_is_left_out():
    quotas = Quotas(open_jobs=5).changed_by({"open_jobs": None, "gone": 7})
    assert quotas.open_jobs is None
    assert quotas.streams == Quotas().streams
    assert set(Quotas.none().model_dump().values()) == {None}
