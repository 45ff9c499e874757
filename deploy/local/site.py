"""The site that a state folder stands for."""

from deploy.bootstrap.site import Site
from deploy.local.state import LOOPBACK, State
from schemas.layout import FORMER_ACCESS


def site(state: State) -> Site:
    return Site(
        kafka_bootstrap=f"{LOOPBACK}:{state.port('kafka')}",
        postgres_address=f"{LOOPBACK}:{state.port('postgres')}",
        s3_endpoint=f"{state.scheme}://{LOOPBACK}:{state.port('s3')}",
        secret=state.secret,
        former_s3_users=tuple(user for user in FORMER_ACCESS if state.has_secret(f"s3:{user}")),
        ca_file=state.ca_file,
    )
