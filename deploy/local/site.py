"""The site that a state folder stands for."""

from deploy.local.state import LOOPBACK, State
from deploy.provision.site import Site


def site(state: State) -> Site:
    return Site(
        kafka_bootstrap=f"{LOOPBACK}:{state.port('kafka')}",
        postgres_address=f"{LOOPBACK}:{state.port('postgres')}",
        s3_endpoint=f"http://{LOOPBACK}:{state.port('s3')}",
        secret=state.secret,
    )
