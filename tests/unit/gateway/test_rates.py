import pytest

from services.gateway.errors import ApiError
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
        in_flight = InFlight("streams", of_all=10)
        with pytest.raises(ZeroDivisionError), in_flight.hold("acme", 1):
            raise ZeroDivisionError
        with (
            in_flight.hold("acme", 1),
            pytest.raises(QuotaExceeded, match="streams: found 1 under way and 1 more, expected at most 1"),
        ):
            in_flight.hold("acme", 1).__enter__()
        assert not in_flight._counts

    def test_counts_each_tenant_alone(self):
        in_flight = InFlight("streams", of_all=10)
        with in_flight.hold("acme", 1), in_flight.hold("other", 1), in_flight.hold("free", None):
            pass

    def test_counts_amounts_where_places_differ_in_size(self):
        in_flight = InFlight("transfer_bytes", of_all=10_000)
        with in_flight.hold("acme", 100, amount=60):
            with pytest.raises(QuotaExceeded, match="found 60 under way and 41 more, expected at most 100"):
                in_flight.hold("acme", 100, amount=41).__enter__()
            with in_flight.hold("acme", 100, amount=40):
                pass
        with in_flight.hold("acme", 100, amount=100):
            pass

    def test_of_all_tenants_together_is_no_more_than_the_process_carries(self):
        in_flight = InFlight("transfers", of_all=2)
        with in_flight.hold("acme", 8), in_flight.hold("beta", None):
            with pytest.raises(ApiError, match="transfers: as much as this gateway carries") as busy:
                in_flight.hold("late", 8).__enter__()
            assert (busy.value.status, busy.value.headers) == (503, {"retry-after": "5"})
        with in_flight.hold("late", 8):
            pass


def test_a_quota_that_an_older_release_had_is_left_out():
    quotas = Quotas(open_jobs=5).changed_by({"open_jobs": None, "gone": 7})
    assert quotas.open_jobs is None
    assert quotas.streams == Quotas().streams
    assert set(Quotas.none().model_dump().values()) == {None}
