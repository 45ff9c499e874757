"""Signatures carry S3's time: it refuses those of a machine whose clock is 15 minutes off (decision 0045)."""

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from botocore import auth

from shared.log import get_logger

log = get_logger(__name__)

SIGNATURE = "s3v4"
MAX_SKEW = timedelta(minutes=1)
FORBIDDEN = 403
MACHINE_TIME, AHEAD = "machine_time", "store_is_ahead"


class StoreClock:
    """The lead of S3's clock over this machine's, taken from a refusal that carries S3's time."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def install(self, client: Any) -> None:
        """Sign all requests of the client by S3's clock."""
        auth.AUTH_TYPE_MAPS[SIGNATURE] = _AuthByStoreClock
        client.meta.events.register("before-sign.s3", self._before_sign)
        client.meta.events.register("needs-retry.s3", self._after_response)

    def _before_sign(self, request: Any, **_: Any) -> None:
        request.context[AHEAD] = self.ahead

    def _after_response(self, response: Any, request_dict: Any, **_: Any) -> float | None:
        """Return the seconds until the request is signed and sent again, or None if the clock is not the reason."""
        context = request_dict["context"]
        store_time = _time_of_refusal(response)
        if store_time is None or MACHINE_TIME not in context:
            return None
        ahead = store_time - context[MACHINE_TIME]
        if abs(ahead - context[AHEAD]) <= MAX_SKEW:
            return None
        log.warning("s3 has another time", seconds_ahead=ahead.total_seconds())
        self.ahead = ahead
        return 0.0


def _time_of_refusal(response: Any) -> datetime | None:
    if response is None or response[0].status_code != FORBIDDEN:
        return None
    try:
        return parsedate_to_datetime(response[0].headers.get("Date", "")).astimezone(UTC)
    except ValueError:
        return None


class _AuthByStoreClock(auth.S3SigV4Auth):
    """A signer like botocore's own, except for the time."""

    def _modify_request_before_signing(self, request: Any) -> None:
        context = request.context
        machine_time = datetime.strptime(context["timestamp"], auth.SIGV4_TIMESTAMP).replace(tzinfo=UTC)
        context[MACHINE_TIME] = machine_time
        signed_at = machine_time + context.setdefault(AHEAD, timedelta(0))
        context["timestamp"] = signed_at.strftime(auth.SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)  # type: ignore[misc]
