"""The table of a turn: complete, and every walk through it keeps its rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpd.errors import LocalProtocolError
from acpd.turn import TURN, On, Turn, advance

PAIRS = [(state, event) for state in Turn for event in On]


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=lambda value: value.name)
def test_every_pair_is_in_the_table_or_an_error(state: Turn, event: On) -> None:
    """A pair that the table has gives the table's state; every other one is our own bug, and says which."""
    if (state, event) in TURN:
        assert TURN[state, event] is advance(state, event)
    else:
        with pytest.raises(LocalProtocolError, match=f"{state.name}.*{event.name}"):
            advance(state, event)


def test_the_table_knows_states_and_events_and_nothing_else() -> None:
    """Each state can be entered and left; each event happens somewhere; ENDING is left by SETTLED alone."""
    assert set(Turn) == {state for state, _ in TURN} == set(TURN.values())
    assert set(On) == {event for _, event in TURN}
    assert [On.SETTLED] == [event for (state, event), after in TURN.items() if state is Turn.ENDING is not after]


def test_cancelling_is_possible_in_every_state_but_before_the_agent_has_the_prompt() -> None:
    """A late or a second cancel is nothing; one that comes while the turn starts ends it, so there it is ENDED."""
    assert {Turn.STARTING} == {state for state in Turn if (state, On.CANCELLED) not in TURN}
    assert Turn.IDLE is advance(Turn.IDLE, On.CANCELLED)
    assert Turn.ENDING is advance(Turn.ENDING, On.CANCELLED)


@given(st.lists(st.sampled_from(list(On)), max_size=60))
def test_a_walk_keeps_the_rules(events: list[On]) -> None:
    """One prompt, one end, one settling, in that order, whatever is tried in between; nothing refused changes the state."""
    state = Turn.IDLE
    taken: list[On] = []
    for event in events:
        before = state
        try:
            state = advance(state, event)
        except LocalProtocolError:
            assert before is state
        else:
            taken.append(event)
    steps = [event for event in taken if event in (On.PROMPTED, On.ENDED, On.SETTLED)]
    assert [(On.PROMPTED, On.ENDED, On.SETTLED)[number % 3] for number in range(len(steps))] == steps
    assert (state is Turn.IDLE) == (len(steps) % 3 == 0)
    assert (state is Turn.ENDING) == (len(steps) % 3 == 2)
