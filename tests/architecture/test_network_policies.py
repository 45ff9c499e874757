"""Who reaches whom on Kubernetes: the policies of the component `network`, and the ports that they name."""

import re

from deploy.kubernetes import passwords
from deploy.local.environment import ASKED_BY_NODES
from schemas.topics import SERVICES
from tests.architecture.manifests import COMPONENTS, Manifest, nodes_ports, of_kind

POLICIES = of_kind("NetworkPolicy", COMPONENTS / "network")
OF_NODES = {"matchLabels": {"kubernetes.io/metadata.name": passwords.POOLS}}


def service_chosen(policy: Manifest) -> str | None:
    """The one service that a policy is for; None where it is for several, or for other pods."""
    service: str | None = policy["spec"]["podSelector"].get("matchLabels", {}).get("retune/service")
    return service


def test_a_policy_names_services_that_there_are():
    named = set(re.findall(r"'retune/service', 'operator': 'In', 'values': \[(.*?)\]", str(POLICIES)))
    values = {word.strip("' ") for group in named for word in group.split(",")}
    assert values
    assert values <= set(SERVICES)
    chosen = {service for policy in POLICIES.values() if (service := service_chosen(policy))}
    assert chosen == {"gateway", *ASKED_BY_NODES}


def test_ports_are_those_of_the_parts():
    ports = set(re.findall(r"'port': (\d+)", str(POLICIES)))
    assert ports == {"9092", "5432", "7070", *map(str, nodes_ports().values()), "53"}


def test_nodes_reach_the_listeners_for_nodes_and_no_other():
    reached = {
        service: rule["ports"]
        for policy in POLICIES.values()
        if (service := service_chosen(policy))
        for rule in policy["spec"].get("ingress", ())
        if any(source.get("namespaceSelector") == OF_NODES for source in rule.get("from", ()))
    }
    assert set(reached) == set(ASKED_BY_NODES)
    assert reached == {name: [{"port": port}] for name, port in nodes_ports().items()}
