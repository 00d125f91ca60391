"""Names as ids of producers."""

import re

from hypothesis import given
from hypothesis import strategies as st

from headwater.spark.producer_ids import producer_id

NAMES = st.one_of(
    st.text(),
    st.text(alphabet="utf-8'%E é\n"),
    st.characters(categories=["Cs"]),
    st.text(max_size=3).map(producer_id),
)


@given(NAMES, NAMES)
def test_each_name_has_an_id_of_its_own_that_a_header_carries(one: str, other: str) -> None:
    assert (producer_id(one) == producer_id(other)) == (one == other)
    assert re.fullmatch("[!-~]([ -~]*[!-~])?", producer_id(one))


@given(st.from_regex("[A-Za-z0-9%._/-]+( [A-Za-z0-9'-]+)?", fullmatch=True))
def test_a_plain_name_is_its_own_id(name: str) -> None:
    assert producer_id(name) == name


def test_other_names_are_written_as_rfc_8187_does() -> None:
    assert producer_id("publish-日本") == "utf-8''publish-%E6%97%A5%E6%9C%AC"
