"""Ctrl-C is deferred where it would lose something, and does not cut the last message short."""

import signal
from collections.abc import Iterator

import pytest

from headwater.cli._io import Interrupts


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


def is_interrupted() -> bool:
    """Press Ctrl-C; return whether that interrupts."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return True
    return False


def test_a_second_interrupt_does_not_disturb_the_end_of_the_command() -> None:
    with Interrupts(once=True):
        assert is_interrupted()
        assert not is_interrupted()
    assert not is_interrupted()


def test_an_interrupt_that_was_held_back_is_the_last_one_as_well() -> None:
    with Interrupts(once=True) as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.deferred():
            assert not is_interrupted()
        assert not is_interrupted()


def test_a_second_interrupt_gets_through_although_it_is_deferred() -> None:
    with Interrupts(once=True) as interrupts, interrupts.deferred():
        assert not is_interrupted()
        assert is_interrupted()
        interrupts.pending = False


def test_without_once_each_interrupt_gets_through() -> None:
    with Interrupts():
        assert is_interrupted()
        assert is_interrupted()
