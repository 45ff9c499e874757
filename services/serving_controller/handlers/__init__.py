"""What the serving controller does with each message, and the loop that makes it so."""

from datetime import timedelta

from services.serving_controller.handlers.messages import Messages
from services.serving_controller.handlers.rounds import ReconcileLoop
from shared.device_leases import holder
from shared.service import Service

TIDY_EVERY = timedelta(hours=1)
LOOKS_PER_SCALE = 10
"""Replicas are asked what they have to answer at each tenth look."""


def register(
    service: Service, reconcile_loop: ReconcileLoop, *, keep: timedelta, look_every: timedelta
) -> None:
    Messages(keep=keep).register(service)
    holder.listen(service)
    service.on_lead(reconcile_loop.start)
    service.every(look_every, reconcile_loop.look, singleton=True)
    if reconcile_loop.leases is not None:
        service.every(reconcile_loop.leases.extend_every, reconcile_loop.extend_leases, singleton=True)
    if reconcile_loop.is_scaling:
        service.every(look_every * LOOKS_PER_SCALE, reconcile_loop.scale, singleton=True)
    service.every(TIDY_EVERY, reconcile_loop.tidy, singleton=True)
    service.on_lead_end(reconcile_loop.stop)
