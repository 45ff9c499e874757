"""What an operator may do to a consumer group: send static members away, and set its offsets back."""

from collections.abc import Iterable
from itertools import chain

from aiokafka import AIOKafkaConsumer, TopicPartition

from deploy.bootstrap.kafka import administrator
from deploy.local.site import site
from deploy.local.stack import Stack
from shared.messaging import group_members
from shared.messaging.kafka import sasl


async def remove_members(stack: Stack, service: str, *processes: str) -> None:
    """Their partitions go to the others at once, not when their session ends."""
    async with administrator(site(stack.state)) as admin:
        members = await group_members.static_members(admin, service)
        names = {process: group_members.members_of(process, members) for process in processes}
        assert all(names.values()), f"group {service} has {sorted(members)} and none of {names}"
        await group_members.remove_members(admin, service, chain.from_iterable(names.values()))


async def read_again(stack: Stack, group: str, topics: Iterable[str]) -> int:
    """Set the offsets of a group without members to the first records; how many it will read again."""
    login = sasl(group, stack.kafka_password(group))
    async with AIOKafkaConsumer(
        bootstrap_servers=stack.kafka_bootstrap, group_id=group, enable_auto_commit=False, **login
    ) as consumer:
        metadata = await consumer._client.fetch_all_metadata()
        partitions = [
            TopicPartition(topic, number)
            for topic in topics
            for number in sorted(metadata.partitions_for_topic(topic) or ())
        ]
        consumer.assign(partitions)
        beginnings = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        await consumer.commit(beginnings)
    return sum(ends[each] - beginnings[each] for each in partitions)
