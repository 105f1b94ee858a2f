"""Turns among many."""

from orthrus_backend.turns import Turns


def test_everybody_has_a_turn_before_anybody_has_two() -> None:
    turns = Turns(3)
    waiting = list("abcdefgh")
    taken = [turns.take(waiting) for _ in range(4)]
    assert ["".join(some) for some in taken] == ["abc", "def", "gha", "bcd"]


def test_few_have_one_turn_at_a_time_and_none_have_none() -> None:
    turns = Turns(3)
    assert [turns.take("ab") for _ in range(2)] == [["a", "b"], ["a", "b"]]
    assert turns.take("") == []


def test_who_stays_has_a_turn_though_others_come_and_go() -> None:
    turns = Turns(2)
    stays, waits = "x", 0
    others = [f"{n}" for n in range(7)]
    for tick in range(200):
        others = [*others[1:], f"new{tick}"]  # the oldest leaves, one comes
        waiting = [*others[:3], stays, *others[3:]]
        waits = 0 if stays in turns.take(waiting) else waits + 1
        assert waits < 2 * len(waiting)
