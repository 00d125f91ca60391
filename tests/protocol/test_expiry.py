"""When a stream expires."""

from headwater.protocol.expiry import NEVER, Expiry


def test_never_has_no_deadline() -> None:
    assert not NEVER
    assert NEVER.deadline(1000.0) is None


def test_a_ttl_slides_with_the_last_access() -> None:
    assert Expiry(ttl=60)
    assert Expiry(ttl=60).deadline(1000.0) == 1060.0
    assert Expiry(ttl=60).deadline(2000.0) == 2060.0


def test_a_ttl_of_zero_is_an_expiry() -> None:
    assert Expiry(ttl=0)
    assert Expiry(ttl=0).deadline(1000.0) == 1000.0


def test_an_absolute_deadline_does_not_depend_on_accesses() -> None:
    expiry = Expiry(expires_at="then", instant=5000.0)
    assert expiry
    assert expiry.deadline(1000.0) == expiry.deadline(4000.0) == 5000.0
