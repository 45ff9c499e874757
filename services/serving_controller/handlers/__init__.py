"""What the serving controller does with each message, and the loop that makes it so."""

from datetime import timedelta

from services.serving_controller.handlers.messages import Messages
from services.serving_controller.handlers.rounds import Rounds
from shared.service import Service

TIDY_EVERY = timedelta(hours=1)


def register(service: Service, rounds: Rounds, *, keep: timedelta, look_every: timedelta) -> None:
    Messages(keep=keep).register(service)
    service.on_lead(rounds.start)
    service.every(look_every, rounds.look, singleton=True)
    service.every(TIDY_EVERY, rounds.tidy, singleton=True)
    service.on_lead_end(rounds.stop)
