"""The site that a state folder stands for."""

from deploy.bootstrap.site import Site
from deploy.local.state import LOOPBACK, State


def site(state: State) -> Site:
    return Site(
        kafka_bootstrap=f"{LOOPBACK}:{state.port('kafka')}",
        postgres_address=f"{LOOPBACK}:{state.port('postgres')}",
        s3_endpoint=f"{state.scheme}://{LOOPBACK}:{state.port('s3')}",
        secret=state.secret,
        ca_file=state.ca_file,
    )
