"""The sentences that end pipelines."""

import pytest
from msgspec import Struct
from msgspec.structs import replace

from headwater.cli.pipeline_report import summary
from headwater.protocol.paths import DEFAULT_URL
from headwater.spark.jobs.publish import Published
from headwater.spark.jobs.restore import Restored, RestoredStream
from headwater.spark.jobs.snapshot import Snapshotted
from headwater.spark.pipelines import Outcome
from headwater.spark.pipelines.progress import Figures


def job(kind: str, place: str, result: Struct, url: str = DEFAULT_URL) -> str:
    """Return the closing sentence of a job with a result."""
    return summary(
        Outcome(
            "p",
            "done",
            Figures(),
            25.12,
            None,
            summary=result,
            is_job=True,
            kind=kind,
            place=place,
            url=url,
        )
    )


@pytest.fixture(autouse=True)
def _usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWATER_URL", raising=False)


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (
            Snapshotted("st", "st.now", "1_9", 1, 325, "1_0", "1_325", 325, resumed=False),
            (
                "p is done: 1 entity of 'st' is in 'st.now': 325 B were written in 25.1 s. Readers "
                "continue in 'st' from offset 1_9: headwater state show st --snapshot st.now"
            ),
        ),
        (
            Snapshotted("st", "st.now", "1_9", 2000, 2048, "1_0", "1_2048", 1024, resumed=True),
            (
                "p is done: 2,000 entities of 'st' are in 'st.now': 1.0 kB were written in 25.1 s, "
                "after those that an earlier run had written. Readers continue in 'st' from offset "
                "1_9: headwater state show st --snapshot st.now"
            ),
        ),
        (
            Snapshotted("st", "st.now", "1_9", 2, 325, "1_0", "1_325", 0, resumed=False),
            (
                "p is done: 'st.now' already has the 2 entities of 'st', and nothing was written "
                "in 25.1 s. Readers continue in 'st' from offset 1_9: headwater state show st "
                "--snapshot st.now"
            ),
        ),
    ],
)
def test_the_summary_of_a_snapshot_names_the_offset_to_continue_from(
    result: Snapshotted, sentence: str
) -> None:
    assert job("snapshot", "st.now", result) == sentence


def test_a_suggested_command_names_the_server() -> None:
    result = Snapshotted("st", "st.now", "1_9", 1, 325, "1_0", "1_325", 325, resumed=False)
    sentence = job("snapshot", "st.now", result, "http://there:1")
    assert sentence.endswith(": headwater state show st --snapshot st.now --url http://there:1")


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (
            Published(2, 1, 0, "1_9", "tx"),
            (
                "p is done: 2 inserts and 1 update were appended to 'out' in 25.1 s, as "
                "transaction tx. It ends at offset 1_9."
            ),
        ),
        (
            Published(1, 2, 3, "1_9", "tx"),
            (
                "p is done: 1 insert, 2 updates and 3 deletes were appended to 'out' in 25.1 s, as "
                "transaction tx. It ends at offset 1_9."
            ),
        ),
        (
            Published(0, 0, 1, "1_9", "tx"),
            (
                "p is done: 1 delete was appended to 'out' in 25.1 s, as transaction tx. It ends "
                "at offset 1_9."
            ),
        ),
        (
            Published(0, 0, 0, "1_9"),
            (
                "p is done: 'out' is up to date, and nothing was appended in 25.1 s. It "
                "ends at offset 1_9."
            ),
        ),
    ],
)
def test_the_summary_of_a_publication_counts_the_changes(result: Published, sentence: str) -> None:
    assert job("publish", "out", result) == sentence


def stream(
    path: str, size: int, appended: int, *, kind: str = "application/json"
) -> RestoredStream:
    return RestoredStream(path, path, kind, 3, size, appended, "1_9", closed=path == "b")


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (
            [stream("a", 9, 9)],
            "p is done: 'a' was restored in 25.1 s: 3 messages, 9 B. It ends at offset 1_9.",
        ),
        (
            [stream("b", 9, 4, kind="text/plain")],
            (
                "p is done: 'b' was restored in 25.1 s: 3 pieces, 9 B, of which 4 B were missing. "
                "It ends at offset 1_9 and is closed."
            ),
        ),
        (
            [stream("a", 9, 0), stream("b", 9, 0)],
            (
                "p is done: 2 streams of /kept were restored in 25.1 s: 6 messages, 18 B, all of "
                "which existed already."
            ),
        ),
    ],
)
def test_the_summary_of_a_restore_counts_the_data(
    result: list[RestoredStream], sentence: str
) -> None:
    assert job("restore", "/kept", Restored(result)) == sentence


DONE = Figures(batches=1, batch=4, rows=3, bytes=90)


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        (DONE, "p is done: 3 rows, 90 B in 1 batch up to number 4, 25.1 s; up to date."),
        (
            replace(DONE, aside=1),
            (
                "p is done: 3 rows, 90 B in 1 batch up to number 4, 25.1 s; up to date. 1 message "
                "was quarantined: the reasons are in the table /t/_quarantine."
            ),
        ),
        (
            replace(DONE, aside=2, lag_bytes=7),
            (
                "p is done: 3 rows, 90 B in 1 batch up to number 4, 25.1 s; 7 B to do. 2 messages "
                "were quarantined: the reasons are in the table /t/_quarantine."
            ),
        ),
        (
            replace(DONE, batch_lag_seconds=1.25),
            (
                "p is done: 3 rows, 90 B in 1 batch up to number 4, 25.1 s; up to date; the last "
                "events were in the tables 1.2 s after they were persisted."
            ),
        ),
    ],
)
def test_the_summary_of_a_query_has_its_lag_and_the_quarantined_messages(
    figures: Figures, sentence: str
) -> None:
    assert summary(Outcome("p", "done", figures, 25.12, None, place="/t")) == sentence
