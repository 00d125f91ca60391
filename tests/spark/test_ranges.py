"""How bytes are shared out and packed."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.spark.ranges import LEAST_SHARE, Range, pack, piece_bytes, share


def offset(byte: int, epoch: int = 1) -> str:
    return f"{epoch:016d}_{byte:016d}"


lags = st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(1, 10**9), min_size=1)


@given(lags=lags, budget=st.integers(1, 10**9), last=st.text("abc", max_size=4))
def test_a_budget_is_kept_and_always_moves_something(
    lags: dict[str, int], budget: int, last: str
) -> None:
    shares = share(lags, budget, last)
    assert shares
    assert all(0 < size <= lags[name] for name, size in shares.items())
    assert sum(shares.values()) <= max(budget, len(shares))
    if sum(lags.values()) <= budget and len(lags) * LEAST_SHARE <= budget:
        assert shares == lags


def test_small_lags_are_served_whole_and_the_rest_is_shared() -> None:
    mib = 1 << 20
    assert share({"a": 10, "b": 9 * mib, "c": 9 * mib}, 2 * mib + 10, "") == {
        "a": 10,
        "b": mib,
        "c": mib,
    }


def test_where_there_are_too_many_each_has_its_turn() -> None:
    lagging = {f"s{number}": 10**6 for number in range(10)}
    served: set[str] = set()
    last = ""
    for _ in range(5):
        shares = share(lagging, 2 * LEAST_SHARE, last)
        assert len(shares) == 2
        last = max(shares)
        served |= shares.keys()
    assert served == lagging.keys()


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 150))
def test_packing_keeps_the_order_and_the_size(sizes: list[int], size: int) -> None:
    pieces = [Range(f"s{at}", offset(0), offset(length)) for at, length in enumerate(sizes)]
    packed = pack(pieces, size)
    assert [piece for some in packed for piece in some] == pieces
    assert all(len(some) == 1 or sum(piece.bytes for piece in some) <= size for some in packed)


def test_pieces_are_long_but_a_batch_of_some_length_has_four() -> None:
    mib = 1024 * 1024
    assert [piece_bytes(total * mib, 64 * mib) // mib for total in (1, 20, 100, 1000)] == [
        8,
        8,
        25,
        64,
    ]
    assert piece_bytes(100 * mib, 2048) == 2048
