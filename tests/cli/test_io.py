"""Ctrl-C is deferred during critical operations, and does not interrupt the closing report."""

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


def test_a_second_interrupt_does_not_disturb_the_closing_report() -> None:
    with Interrupts(once=True):
        assert is_interrupted()
        assert not is_interrupted()
    assert not is_interrupted()


def test_a_deferred_interrupt_is_raised_only_once() -> None:
    with Interrupts(once=True) as interrupts:
        with pytest.raises(KeyboardInterrupt), interrupts.deferred():
            assert not is_interrupted()
        assert not is_interrupted()


def test_a_second_interrupt_is_not_deferred() -> None:
    with Interrupts(once=True) as interrupts, interrupts.deferred():
        assert not is_interrupted()
        assert is_interrupted()
        interrupts.pending = False


def test_without_once_each_interrupt_is_raised() -> None:
    with Interrupts():
        assert is_interrupted()
        assert is_interrupted()
