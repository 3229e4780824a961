"""Which servers each worker serves: every server is served, evenly, and few workers move."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue._engine.cluster.spreading import preferred, spread

names = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=40, unique=True)
salts = st.lists(st.integers(0, 1023), min_size=1, max_size=24, unique=True)
counts = st.integers(1, 30)


def loads(made, servers):
    return [sum(server in mine for mine in made.values()) for server in servers]


@pytest.mark.slow
@given(names, salts, counts)
def test_every_server_is_served_and_the_load_is_even(members, servers, k):
    made = spread(members, servers, k)
    each = min(len(servers), max(k, math.ceil(len(servers) / len(members))))
    assert made.keys() == set(members)
    assert {len(mine) for mine in made.values()} == {each}
    assert set().union(*made.values()) == set(servers)
    assert max(loads(made, servers)) - min(loads(made, servers)) <= 1


@pytest.mark.slow
@given(names, salts, counts, st.randoms(use_true_random=False))
def test_the_order_in_which_they_are_known_does_not_matter(members, servers, k, random):
    made = spread(members, servers, k)
    random.shuffle(members)
    random.shuffle(servers)
    assert spread(members, servers, k) == made


@pytest.mark.slow
@given(names, salts, counts)
def test_with_as_many_as_there_are_each_member_serves_all(members, servers, k):
    assert spread(members, servers, len(servers) + k - 1) == {member: set(servers) for member in members}


@given(st.text(max_size=6), salts, counts)
def test_a_member_alone_serves_all_and_one_that_knows_no_other_its_own_choice(member, servers, k):
    assert spread([member], servers, k) == {member: set(servers)}
    assert len(preferred(member, servers, k)) == min(k, len(servers))


def test_few_workers_change_servers_when_one_comes_or_goes():
    members, servers = [f"worker {n}" for n in range(100)], list(range(1, 21))
    made = spread(members, servers, 4)

    def moved(other):
        return sum(made[one] != mine for one, mine in other.items() if one in made)

    assert moved(spread(members[1:], servers, 4)) <= 15
    assert moved(spread([*members, "another"], servers, 4)) <= 35
    assert moved(spread(members, servers[1:], 4)) <= 60
