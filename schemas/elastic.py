"""Elastic jobs: those whose attempts may differ in their number of nodes. Pure.

A step trains on the same windows on any number of processes, each of which takes a share, so every number between
the least and the most will do.
"""

from schemas.specification import JobSpec, Resources


def sizes_of(asked: Resources) -> tuple[Resources, ...]:
    """Return what is asked for with each number of nodes that an attempt may have, the least first; alone where the
    number is fixed."""
    if asked.min_nodes is None:
        return (asked,)
    return tuple(with_nodes(asked, nodes) for nodes in range(asked.min_nodes, asked.nodes + 1))


def with_nodes(asked: Resources, nodes: int) -> Resources:
    """Return the same with exactly so many nodes."""
    return asked.model_copy(update={"nodes": nodes, "min_nodes": None})


def at_least_nodes(spec: JobSpec) -> JobSpec:
    """Return the job on the least nodes that an attempt may have, where each device holds most."""
    return spec.model_copy(update={"resources": sizes_of(spec.resources)[0]})
