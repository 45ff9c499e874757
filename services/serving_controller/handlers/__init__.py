"""What the serving controller does with each message, and the loop that makes it so."""

from datetime import timedelta

from services.serving_controller.handlers.messages import Messages
from services.serving_controller.handlers.rounds import Rounds
from shared.service import Service


def register(service: Service, rounds: Rounds, *, keep: timedelta, look_every: timedelta) -> None:
    Messages(keep=keep).register(service)
    service.on_start(rounds.start)
    service.every(look_every, rounds.look)
    service.on_stop(rounds.stop)
