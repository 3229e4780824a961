"""A process's place in the line of a queue, by hand: what comes while the server is asked."""

from __future__ import annotations

import pytest

from pgqueue._engine.places import CHECK, REFUSED, UNDER_WAY, Place


@pytest.mark.parametrize("heard", [True, False], ids=["heard", "in line"])
def test_another_process_enters_while_this_one_does(heard: bool) -> None:
    """The server looked before the other came: what it answered may be old."""
    place = Place.armed(hears=heard)
    place.entering()
    place.come()
    assert place.at == UNDER_WAY
    place.entered(None, hears=True, now=5.0)
    assert place.at == 0.0


def test_a_process_in_line_need_not_know_that_another_has_entered() -> None:
    place = Place.armed(hears=False)
    place.entering()
    place.come()
    place.entered(1.5, hears=False, now=5.0)
    assert (place.since, place.at) == (1.5, 5.0 + CHECK)
    place.come()
    assert place.at == 5.0 + CHECK


def test_a_process_that_hears_every_put_enters_when_another_has() -> None:
    place = Place.armed(hears=True)
    assert place.at == UNDER_WAY
    place.come()
    assert place.at == 0.0


@pytest.mark.parametrize("hears", [True, False])
def test_a_call_while_this_process_enters_means_that_it_enters_again(hears: bool) -> None:
    place = Place.armed(hears=False)
    place.entering()
    place.called()
    place.entered(1.5, hears, now=5.0)
    assert place.at == 0.0


def test_a_place_that_was_refused_is_asked_for_again() -> None:
    place = Place.armed(hears=True)
    place.entering()
    place.come()
    place.refused(5.0)
    assert (place.hears, place.at) == (True, 5.0 + REFUSED)
    place.entering()
    place.entered(None, hears=True, now=6.0)
    assert place.at == UNDER_WAY
