"""The memory budget: tails and caches share it, and none of them takes more than its part."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.server.memory_budget import divide
from headwater.server.settings import MIB, Settings


def test_by_default_most_of_the_budget_is_for_the_tails() -> None:
    budget = divide(Settings())
    assert budget.response_bytes == 16 * MIB
    assert budget.loaded_streams == 50_000
    assert 170 * MIB < budget.tail_bytes < 180 * MIB


def test_a_cache_takes_no_more_than_a_quarter() -> None:
    budget = divide(Settings(memory_budget_bytes=8 * MIB, read_cache_bytes=100 * MIB))
    assert budget.response_bytes == 2 * MIB
    assert budget.loaded_streams == 2048
    assert budget.tail_bytes >= 2 * MIB


def test_tails_get_what_the_caches_do_not_use() -> None:
    settings = Settings(read_cache_bytes=0, max_loaded_streams=1, max_open_segments=1)
    assert divide(settings).tail_bytes > 255 * MIB


@given(
    st.integers(MIB, 2**40),
    st.integers(0, 2**40),
    st.integers(1, 10**9),
    st.integers(1, 4096),
)
def test_all_parts_together_are_the_budget(
    budget: int, answers: int, streams: int, segments: int
) -> None:
    settings = Settings(
        memory_budget_bytes=budget,
        read_cache_bytes=answers,
        max_loaded_streams=streams,
        max_open_segments=segments,
    )
    parts = divide(settings)
    assert parts.tail_bytes >= budget // 4
    assert parts.response_bytes <= answers
    assert 1 <= parts.loaded_streams <= streams
    taken = (
        parts.response_bytes + 1024 * parts.loaded_streams + 64 * segments * parts.checked_blocks
    )
    assert parts.tail_bytes + taken == budget
