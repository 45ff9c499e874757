"""Each pause may be twice as long as the last, none is longer than the limit, and no two processes keep step."""

from shared.messaging.consumer import FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, _backoff


def test_pauses_double_up_to_a_limit():
    for failures in range(20):
        longest = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2**failures)
        pauses = {_backoff(failures) for _ in range(50)}
        assert longest / 2 <= min(pauses) <= max(pauses) <= longest
        assert len(pauses) > 1
