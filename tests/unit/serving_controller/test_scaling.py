from datetime import timedelta

import pytest

from services.serving_controller.decide.pools import Policy
from services.serving_controller.decide.scaling import Scale, first_scale, next_scale
from services.serving_controller.model import Phase, Requests
from tests.unit.serving_controller.builders import NOON, POOL, a_replica

POLICY = Policy(replicas_per_pool=1, max_replicas_per_pool=3, requests_per_replica=8)
UP, DOWN = POLICY.scale_up_after, POLICY.scale_down_after
FULL = Requests(8, 1)


def replicas(number):
    return [a_replica(index) for index in range(number)]


def requests(*each):
    return {f"{POOL}-{index}": of_one for index, of_one in enumerate(each)}


def after(scale, *each, time=timedelta(0), of=None, policy=POLICY):
    """The scale with these requests of each replica."""
    return next_scale(scale, of or replicas(len(each)), requests(*each), now=NOON + time, policy=policy)


class TestOneMore:
    def test_comes_once_requests_have_waited_for_a_while(self):
        begun = after(Scale(1), FULL)
        assert begun == Scale(1, waiting_since=NOON)
        assert after(begun, FULL, time=UP - timedelta(seconds=1)) == begun
        assert after(begun, FULL, time=UP) == Scale(2)

    def test_waits_again_after_a_moment_in_which_none_waited(self):
        begun = after(Scale(1), FULL)
        assert after(begun, Requests(8, 0), time=UP) == Scale(1)

    def test_does_not_come_beyond_the_limit(self):
        begun = Scale(3, waiting_since=NOON)
        assert after(begun, FULL, FULL, FULL, time=UP).num_replicas == 3

    def test_does_not_come_while_another_one_starts(self):
        of = [a_replica(), a_replica(1, Phase.STARTING)]
        assert after(Scale(2, waiting_since=NOON), FULL, time=UP, of=of) == Scale(2)

    def test_never_comes_where_the_number_is_fixed(self):
        policy = Policy(requests_per_replica=8)
        assert after(Scale(1, waiting_since=NOON), FULL, time=10 * UP, policy=policy).num_replicas == 1


class TestOneFewer:
    @pytest.mark.parametrize(
        ("each", "is_enough"),
        [
            ((Requests(2, 0), Requests(2, 0)), True),
            ((Requests(3, 0), Requests(2, 0)), False),
            ((Requests(1, 3), Requests(1, 0)), False),
        ],
    )
    def test_is_enough_when_the_others_would_be_half_full(self, each, is_enough):
        scale = after(Scale(2, spare_since=NOON), *each, time=DOWN)
        assert scale.num_replicas == (1 if is_enough else 2)
        assert (scale.spare_since is None) or scale.num_replicas == 2

    def test_is_enough_only_after_a_while(self):
        begun = after(Scale(2), Requests(0, 0), Requests(1, 0))
        assert begun == Scale(2, spare_since=NOON)
        assert after(begun, Requests(0, 0), Requests(1, 0), time=DOWN - timedelta(seconds=1)) == begun

    def test_is_enough_where_one_more_does_not_start(self):
        of = [a_replica(), a_replica(1, Phase.LOST)]
        assert after(Scale(2, spare_since=NOON), Requests(1, 0), time=DOWN, of=of) == Scale(1)

    def test_is_never_less_than_the_least(self):
        assert after(Scale(1, spare_since=NOON), Requests(0, 0), time=DOWN).num_replicas == 1


def test_nothing_is_judged_by_what_is_not_known():
    scale = next_scale(
        Scale(2, spare_since=NOON), replicas(2), requests(FULL), now=NOON + DOWN, policy=POLICY
    )
    assert scale == Scale(2)


@pytest.mark.parametrize(("existing", "number"), [(0, 1), (2, 2), (5, 3)])
def test_who_leads_from_now_on_goes_on_from_what_there_is(existing, number):
    assert first_scale(replicas(existing), POLICY) == Scale(number)


def test_what_leaves_or_was_lost_is_not_counted_among_what_there_is():
    gone = [*replicas(2), a_replica(2, Phase.LEAVING), a_replica(3, Phase.LOST)]
    assert first_scale(gone, POLICY) == Scale(2)
