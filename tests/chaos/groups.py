"""What an operator may do to a consumer group: send static members away, and set its offsets back."""

from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int16, Int32, Schema, String

from deploy.bootstrap.kafka import administrator
from deploy.local.site import site
from deploy.local.stack import Stack
from schemas.topics import LISTENS
from shared.messaging.kafka import member_name, sasl


class LeaveGroupResponse_v3(Response):
    API_KEY = 13
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        (
            "members",
            Array(
                ("member_id", String("utf-8")),
                ("group_instance_id", String("utf-8")),
                ("error_code", Int16),
            ),
        ),
    )


class LeaveGroupRequest_v3(RequestStruct):
    API_KEY = 13
    API_VERSION = 3
    RESPONSE_TYPE = LeaveGroupResponse_v3
    SCHEMA = Schema(
        ("group", String("utf-8")),
        ("members", Array(("member_id", String("utf-8")), ("group_instance_id", String("utf-8")))),
    )


class RemoveMembers(Request[LeaveGroupRequest_v3]):
    """By their static ids; aiokafka's own request knows no static members."""

    API_KEY = 13

    def __init__(self, group: str, instances: Iterable[str]) -> None:
        self._group = group
        self._members = [("", instance) for instance in instances]

    def build(self, request_struct_class: type[LeaveGroupRequest_v3]) -> LeaveGroupRequest_v3:
        return request_struct_class(self._group, self._members)


async def remove_members(stack: Stack, service: str, *processes: str) -> None:
    """Their partitions go to the others at once, not when their session ends."""
    topics = [topic.name for topic in LISTENS[service]]
    members = [member_name(process, topics) for process in processes]
    async with administrator(site(stack.state)) as admin:
        response = await admin._send_to_controller(RemoveMembers(service, members))
    assert response.error_code == 0, f"error {response.error_code}"
    assert not any(code for *_, code in response.members), response.members


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
