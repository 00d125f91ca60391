"""Group commit: one sync for all who wait, in order, for tasks and for plain coroutines alike."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from headwater.storage.disk.faults import NO_FAULTS, Faults
from headwater.storage.disk.fsync import SyncFailed
from headwater.storage.disk.group_commit import CommitFuture, GroupCommit
from headwater.storage.disk.journal import JournalWriter
from headwater.storage.disk.journal_reader import JournalEntry, read_journal
from headwater.storage.disk.metrics import EngineMetrics
from tests.support.disk_faults import DiskFaults
from tests.support.patience import PATIENCE_SECONDS, until


class HandSync:
    """A sync that ends when the test says so."""

    def __init__(self) -> None:
        self.done: Callable[[OSError | None], None] | None = None
        self.started = 0

    def start(self, fd: int, done: Callable[[OSError | None], None]) -> None:
        assert fd >= 0
        assert self.done is None, "two syncs at once"
        self.started += 1
        self.done = done

    async def finish(
        self, error: OSError | None = None, then: Callable[[], object] | None = None
    ) -> None:
        """Report on the loop, as syncs do; `then` is called before anything else happens."""
        done, self.done = self.done, None
        assert done is not None, "no sync is in flight"
        over = asyncio.get_running_loop().create_future()

        def report() -> None:
            done(error)
            over.set_result(then and then())

        asyncio.get_running_loop().call_soon(report)
        await over

    def close(self) -> None:
        assert self.done is None


class Operation:
    """Notes what becomes of it."""

    def __init__(self, log: list[str], name: str) -> None:
        self._log = log
        self._name = name

    def apply(self) -> None:
        self._log.append(f"apply {self._name}")

    def revert(self) -> None:
        self._log.append(f"revert {self._name}")


class Unappliable(Operation):
    """An operation that is durable and can't be applied."""

    def apply(self) -> None:
        raise RuntimeError("a page of the catalog can't be read")


class Bench:
    """A group commit with everything at hand."""

    def __init__(self, folder: Path, *, synced: bool = True, faults: Faults = NO_FAULTS) -> None:
        self.log: list[str] = []
        self.sync = HandSync()
        self.journal = JournalWriter(folder, 1, 4096)
        self.commits = GroupCommit(
            asyncio.get_running_loop(),
            self.journal,
            self.sync if synced else None,
            EngineMetrics(),
            after_batch=self.after_batch,
            notify=lambda: self.log.append("notify"),
            faults=faults,
        )
        self.after_batch_fails = False

    def after_batch(self) -> None:
        self.log.append("after batch")
        if self.after_batch_fails:
            raise RuntimeError("no checkpoint can be begun")

    def add(self, name: str) -> CommitFuture:
        return self.commits.add([b"record of %b" % name.encode()], Operation(self.log, name))

    def written(self) -> list[str]:
        return [
            item.body.decode().removeprefix("record of ")
            for item in read_journal(self.journal.path)
            if isinstance(item, JournalEntry)
        ]


def runs(scenario: Callable[[Bench], Coroutine[Any, Any, None]], folder: Path) -> None:
    async def run() -> None:
        bench = Bench(folder)
        try:
            await scenario(bench)
        finally:
            bench.journal.close()

    asyncio.run(run())


def drive(call: Coroutine[CommitFuture, None, object]) -> Callable[[], list[object]]:
    """Run a coroutine without a task, as the server's eager calls do."""
    results: list[object] = []

    def step(_: object = None) -> None:
        try:
            waits_for = call.send(None)
        except StopIteration as end:
            results.append(end.value)
        else:
            waits_for._asyncio_future_blocking = False
            waits_for.add_done_callback(step)

    step()
    return lambda: results


async def turn() -> None:
    """Let the loop come round."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_those_who_arrive_while_a_sync_runs_share_the_next_one(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        first = bench.add("a")
        assert bench.add("b") is first
        await turn()
        assert bench.written() == ["a", "b"]
        assert not first.done()
        assert bench.log == []
        second = bench.add("c")
        assert second is not first
        assert bench.add("d") is second
        await turn()
        assert bench.written() == ["a", "b"], "the next batch waits for the sync"
        await bench.sync.finish()
        assert first.done()
        assert not second.done()
        assert bench.log == ["apply a", "apply b", "after batch", "notify"]
        assert bench.written() == ["a", "b", "c", "d"]
        await bench.sync.finish()
        assert second.done()
        assert bench.sync.started == 2
        assert bench.commits.idle

    runs(scenario, tmp_path)


def test_waiters_go_on_in_the_turn_in_which_the_sync_ends(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        order: list[str] = []

        async def wait(name: str, commit: CommitFuture) -> OSError | None:
            result = await commit
            order.append(name)
            return result

        commit = bench.add("a")
        task = asyncio.create_task(wait("task", commit))
        await turn()
        plain = drive(wait("plain", commit))
        at_once: list[str] = []
        await bench.sync.finish(then=lambda: at_once.extend(order))
        assert at_once == ["task", "plain"], "they waited for another turn of the loop"
        assert plain() == [None]
        assert await task is None

    runs(scenario, tmp_path)


def test_the_disk_works_on_the_next_batch_while_the_last_one_is_answered(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        first = bench.add("a")
        await turn()
        bench.add("b")
        seen: list[tuple[int, list[str]]] = []
        first.add_done_callback(lambda _: seen.append((bench.sync.started, bench.written())))
        await bench.sync.finish()
        assert seen == [(2, ["a", "b"])]
        assert bench.log == ["apply a", "after batch", "notify"]
        await bench.sync.finish()

    runs(scenario, tmp_path)


def test_a_next_batch_that_can_not_be_written_leaves_the_last_one_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(bench: Bench) -> None:
        first = bench.add("a")
        await turn()
        second = bench.add("b")

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "no room")

        monkeypatch.setattr(bench.journal, "write", full)
        await bench.sync.finish()
        assert (first.done(), first.result()) == (True, None)
        assert second.result() is not None
        assert bench.log == ["apply a", "after batch", "revert b", "notify"]

    runs(scenario, tmp_path)


def test_a_waiter_that_fails_does_not_keep_the_others_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(bench: Bench) -> None:
        commit = bench.add("a")
        seen: list[str] = []

        def fail(_: object) -> None:
            raise RuntimeError("injected")

        commit.add_done_callback(fail)
        commit.add_done_callback(lambda _: seen.append("resumed"))
        await turn()
        await bench.sync.finish()
        assert seen == ["resumed"]
        assert bench.log == ["apply a", "after batch", "notify"]

    runs(scenario, tmp_path)
    assert "injected" in caplog.text


def test_waiting_for_what_is_done_does_not_wait(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        commit = bench.add("a")
        await turn()
        await bench.sync.finish()

        async def wait() -> OSError | None:
            return await commit

        assert drive(wait())() == [None]
        assert await wait() is None

    runs(scenario, tmp_path)


def test_a_cancelled_task_leaves_the_commit_to_all_others(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        commit = bench.add("a")

        async def wait() -> OSError | None:
            return await commit

        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        await turn()
        tasks[1].cancel()
        await turn()
        await bench.sync.finish()
        await asyncio.wait(tasks)
        assert tasks[1].cancelled()
        assert [tasks[0].result(), tasks[2].result()] == [None, None]
        assert bench.log == ["apply a", "after batch", "notify"]

    runs(scenario, tmp_path)


def test_a_deadline_on_an_append_does_not_take_it_back(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        async def wait(commit: CommitFuture) -> OSError | None:
            return await commit

        append = asyncio.create_task(wait(bench.add("a")))
        waiting = asyncio.create_task(asyncio.wait_for(append, 0.01))
        await until(append.cancelling, "the deadline")
        await bench.sync.finish()
        with pytest.raises(TimeoutError):
            await waiting
        assert bench.log == ["apply a", "after batch", "notify"]
        await asyncio.gather(wait_then_finish(bench, "b"))

    async def wait_then_finish(bench: Bench, name: str) -> None:
        commit = bench.add(name)
        await turn()
        await bench.sync.finish()
        assert await commit is None

    runs(scenario, tmp_path)


def test_a_waiter_goes_on_in_its_own_context(tmp_path: Path) -> None:
    name: ContextVar[str] = ContextVar("name", default="nobody")

    async def scenario(bench: Bench) -> None:
        commit = bench.add("a")

        async def wait(own: str) -> str:
            name.set(own)
            await commit
            return name.get()

        tasks = [asyncio.create_task(wait(own)) for own in ("x", "y")]
        await turn()
        await bench.sync.finish()
        assert [await task for task in tasks] == ["x", "y"]

    runs(scenario, tmp_path)


def test_a_failed_sync_takes_everything_back_newest_first_and_for_good(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        first = bench.add("a")
        bench.add("b")
        await turn()
        second = bench.add("c")
        failure = OSError(errno.EIO, "the disk is gone")
        await bench.sync.finish(failure)
        assert bench.log == ["revert c", "revert b", "revert a"]
        assert first.result() is second.result() is failure
        third = bench.add("d")
        await turn()
        assert third.result() is failure
        assert bench.log[-1] == "revert d"
        assert bench.sync.started == 1
        assert "d" not in bench.written()
        assert bench.commits.idle

    runs(scenario, tmp_path)


def test_a_failed_write_is_refused_and_the_next_one_tried(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        good = bench.add("a")
        await turn()
        await bench.sync.finish()
        fd = bench.journal.fd
        bench.journal.fd = -1  # any write fails, and so does cutting
        refused = bench.add("b")
        await turn()
        assert refused.result() is not None
        assert good.result() is None
        assert bench.log[-1] == "revert b"
        bench.journal.fd = fd
        # The file could not be truncated, so its content is unknown: nothing more is written.
        still = bench.add("c")
        await turn()
        assert still.result() is not None

    runs(scenario, tmp_path)


def test_what_can_not_be_shown_is_in_doubt_and_nothing_more_is_written(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        first = bench.add("a")
        bench.commits.add([b"record of b"], Unappliable(bench.log, "b"))
        bench.add("c")
        await turn()
        second = bench.add("d")
        await bench.sync.finish()
        assert bench.log == ["apply a", "revert d", "revert c", "revert b"]
        assert first.result() is second.result() is bench.commits.failure is not None
        assert "can't be read" in str(first.result())
        third = bench.add("e")
        await turn()
        assert third.result() is bench.commits.failure
        assert bench.written() == ["a", "b", "c"]
        await asyncio.wait_for(bench.commits.drain(), PATIENCE_SECONDS)

    runs(scenario, tmp_path)


def test_a_failure_between_two_batches_leaves_the_last_one_done(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        first = bench.add("a")
        await turn()
        second = bench.add("b")
        bench.after_batch_fails = True
        await bench.sync.finish()
        assert (first.done(), first.result()) == (True, None)
        assert bench.log == ["apply a", "after batch", "revert b", "notify"]
        assert second.result() is bench.commits.failure is not None
        assert bench.written() == ["a"]
        await asyncio.wait_for(bench.commits.drain(), PATIENCE_SECONDS)

    runs(scenario, tmp_path)


def test_writers_are_acknowledged_before_readers_are_notified(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.add("a").add_done_callback(lambda _: bench.log.append("ack a"))
        bench.add("b").add_done_callback(lambda _: bench.log.append("ack b"))
        await turn()
        await bench.sync.finish()
        assert bench.log == ["apply a", "apply b", "after batch", "ack a", "ack b", "notify"]

    runs(scenario, tmp_path)


def test_the_next_batch_is_written_before_readers_are_notified(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        written: list[list[str]] = []
        bench.commits = GroupCommit(
            asyncio.get_running_loop(),
            bench.journal,
            bench.sync,
            EngineMetrics(),
            after_batch=bench.after_batch,
            notify=lambda: written.append(bench.written()),
        )
        bench.add("a")
        await turn()
        bench.add("b")
        await bench.sync.finish()
        assert written == [["a", "b"]]
        await bench.sync.finish()

    runs(scenario, tmp_path)


def test_a_batch_that_can_not_even_be_put_together_is_refused(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        wrong: Any = ["text can't be written"]
        refused = bench.commits.add(wrong, Operation(bench.log, "a"))
        await turn()
        assert refused.result() is not None
        assert bench.log == ["revert a"]
        good = bench.add("b")
        await turn()
        await bench.sync.finish()
        assert good.result() is None
        assert bench.written() == ["b"]

    runs(scenario, tmp_path)


def test_nothing_is_begun_while_paused(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.commits.paused = True
        commit = bench.add("a")
        await turn()
        assert bench.written() == []
        bench.commits.resume()
        assert bench.written() == ["a"]
        await bench.sync.finish()
        assert commit.done()

    runs(scenario, tmp_path)


def test_settling_waits_for_what_is_under_way_and_what_is_queued(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.add("a")
        await turn()
        bench.add("b")
        settling = asyncio.create_task(bench.commits.drain())
        await turn()
        await bench.sync.finish()
        await turn()
        assert not settling.done()
        await bench.sync.finish()
        await asyncio.wait_for(settling, PATIENCE_SECONDS)

    runs(scenario, tmp_path)


def test_without_syncs_a_batch_is_one_turn(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path, synced=False)
        commits = [bench.add(str(number)) for number in range(5)]
        assert not commits[0].done()
        await turn()
        assert all(commit.done() for commit in commits)
        assert bench.log == [*(f"apply {number}" for number in range(5)), "after batch", "notify"]
        bench.journal.close()

    asyncio.run(scenario())


def test_a_waiter_that_appends_at_once_gets_into_the_next_batch(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        async def again(commit: CommitFuture) -> CommitFuture:
            await commit
            return bench.add("b")

        task = asyncio.create_task(again(bench.add("a")))
        await turn()
        await bench.sync.finish()
        second = await task
        await turn()
        await bench.sync.finish()
        assert second.done()
        assert bench.written() == ["a", "b"]

    runs(scenario, tmp_path)


def test_settling_waits_for_a_last_batch_with_nothing_queued(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        commit = bench.add("a")
        await turn()
        settling = asyncio.create_task(bench.commits.drain())
        await turn()
        assert not settling.done()
        await bench.sync.finish()
        await asyncio.wait_for(settling, PATIENCE_SECONDS)
        assert commit.done()

    runs(scenario, tmp_path)


def test_a_release_in_the_turn_of_an_append_begins_one_batch_at_a_time(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.add("a")
        bench.commits.resume()
        bench.add("b")
        await turn()
        assert bench.sync.started == 1
        assert bench.written() == ["a"]
        await bench.sync.finish()
        assert bench.written() == ["a", "b"]
        await bench.sync.finish()

    runs(scenario, tmp_path)


def test_a_turn_without_an_append_left_writes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path, synced=False)
        bench.add("a")
        bench.commits.resume()
        assert bench.log == ["apply a", "after batch", "notify"]
        end = bench.journal.position
        await turn()
        assert bench.log == ["apply a", "after batch", "notify"]
        assert bench.journal.position == end
        bench.journal.close()

    asyncio.run(scenario())


def test_a_journal_that_can_not_be_synced_takes_the_batch_back_for_good(tmp_path: Path) -> None:
    failure = SyncFailed(errno.EIO, "the disk is gone")

    class Unsyncable(JournalWriter):
        def write(self, _: object) -> None:
            raise failure  # of its header, which a full disk had no room for before

    async def scenario(bench: Bench) -> None:
        good, broken = bench.journal, Unsyncable(tmp_path, 2, 4096)
        bench.commits.journal = broken
        first = bench.add("a")
        await turn()
        bench.commits.journal = good
        second = bench.add("b")
        await turn()
        assert first.result() is second.result() is bench.commits.failure is failure
        assert bench.log == ["revert a", "revert b"]
        assert bench.written() == []
        broken.close()

    runs(scenario, tmp_path)


def test_a_failed_sync_answers_those_who_came_first_first(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        order: list[str] = []
        bench.add("a").add_done_callback(lambda _: order.append("a"))
        await turn()
        bench.add("b").add_done_callback(lambda _: order.append("b"))
        await bench.sync.finish(OSError(errno.EIO, "the disk is gone"))
        assert order == ["a", "b"]

    runs(scenario, tmp_path)


def test_after_a_refused_batch_a_task_can_wait_for_the_next(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        async def wait(commit: CommitFuture) -> OSError | None:
            return await commit

        wrong: Any = ["text can't be written"]
        bench.commits.add(wrong, Operation(bench.log, "a"))
        await turn()
        waiting = asyncio.create_task(wait(bench.add("b")))
        await turn()
        await bench.sync.finish()
        assert await asyncio.wait_for(waiting, PATIENCE_SECONDS) is None

    runs(scenario, tmp_path)


@pytest.mark.parametrize(
    ("error", "message"), [(RuntimeError("a page is torn"), "a page is torn"), (MemoryError(), "")]
)
def test_an_error_that_is_not_the_systems_is_an_error_of_the_disk(
    tmp_path: Path, error: Exception, message: str
) -> None:
    class Broken(Operation):
        def apply(self) -> None:
            raise error

    async def scenario(bench: Bench) -> None:
        commit = bench.commits.add([b"record"], Broken(bench.log, "a"))
        await turn()
        await bench.sync.finish()
        failure = commit.result()
        assert failure is not None
        assert failure.errno == errno.EIO
        assert failure.strerror == (message or "MemoryError()")

    runs(scenario, tmp_path)


def test_whoever_gives_up_waiting_is_not_called_back(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        called: list[str] = []

        def gone(_: object) -> None:
            called.append("gone")

        def stays(_: object) -> None:
            called.append("stays")

        commit = bench.add("a")
        commit.add_done_callback(gone)
        commit.add_done_callback(stays)
        assert commit.remove_done_callback(gone) == 1
        assert commit.remove_done_callback(gone) == 0
        await turn()
        await bench.sync.finish()
        assert called == ["stays"]

    runs(scenario, tmp_path)


def test_a_callback_is_given_the_commit_that_it_waited_for(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        given: list[object] = []
        commit = bench.add("a")
        commit.add_done_callback(given.append)
        await turn()
        await bench.sync.finish()
        assert given == [commit]

    runs(scenario, tmp_path)


def test_batches_operations_and_bytes_are_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        metrics = EngineMetrics()
        sync = HandSync()
        journal = JournalWriter(tmp_path, 1, 4096)
        commits = GroupCommit(
            asyncio.get_running_loop(),
            journal,
            sync,
            metrics,
            after_batch=lambda: None,
            notify=lambda: None,
        )
        log: list[str] = []
        begin, started = journal.position, perf_counter()
        for names in ("a", "bc"):
            for name in names:
                commits.add([name.encode()], Operation(log, name))
            await turn()
            await sync.finish()
        assert (metrics.batches, metrics.batch_operations) == (2, 3)
        assert metrics.journal_bytes == journal.position - begin
        assert metrics.sync_seconds.count == 2
        assert 0 <= metrics.sync_seconds.total <= perf_counter() - started
        assert metrics.failed_batches == 0
        for name in "de":
            commits.add([name.encode()], Operation(log, name))
            await turn()
            if sync.done is not None:
                await sync.finish(OSError(errno.EIO, "the disk is gone"))
        assert metrics.failed_batches == 2
        assert metrics.batches == 3
        journal.close()

    asyncio.run(scenario())


def test_a_refused_batch_is_given_the_error_of_its_write(tmp_path: Path) -> None:
    failure = OSError(errno.ENOSPC, "no room")

    class Full(JournalWriter):
        def write(self, _: object) -> None:
            raise failure

    async def scenario(bench: Bench) -> None:
        good, full = bench.journal, Full(tmp_path, 2, 4096)
        bench.commits.journal = full
        refused = bench.add("a")
        await turn()
        assert refused.result() is failure
        assert bench.commits.failure is None
        bench.commits.journal = good
        accepted = bench.add("b")
        await turn()
        await bench.sync.finish()
        assert accepted.result() is None
        full.close()

    runs(scenario, tmp_path)


def test_a_refused_batch_that_can_not_be_cut_off_stops_with_the_reason(tmp_path: Path) -> None:
    failure = OSError(errno.EIO, "the disk is gone")

    class Broken(JournalWriter):
        def write(self, _: object) -> None:
            raise OSError(errno.ENOSPC, "no room")

        def truncate(self) -> None:
            raise failure

    async def scenario(bench: Bench) -> None:
        broken = Broken(tmp_path, 2, 4096)
        bench.commits.journal = broken
        bench.add("a")
        await turn()
        assert bench.commits.failure is failure
        broken.close()

    runs(scenario, tmp_path)


def test_a_failure_between_two_batches_says_why_nothing_more_is_written(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.add("a")
        await turn()
        bench.after_batch_fails = True
        await bench.sync.finish()
        assert "no checkpoint can be begun" in str(bench.commits.failure)

    runs(scenario, tmp_path)


def test_between_two_batches_is_while_none_is_made_durable(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.add("a")
        assert (bench.commits.between_batches, bench.commits.idle) == (True, False)
        await turn()
        assert (bench.commits.between_batches, bench.commits.idle) == (False, False)
        await bench.sync.finish()
        assert (bench.commits.between_batches, bench.commits.idle) == (True, True)

    runs(scenario, tmp_path)


def test_a_fault_makes_one_sync_fail(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path, faults=DiskFaults("sync-fails:2"))
        results = []
        for name in "ab":
            commit = bench.add(name)
            await turn()
            await bench.sync.finish()
            results.append(commit.result())
        bench.journal.close()
        assert results[0] is None
        assert str(results[1]) == "[Errno 5] injected"

    asyncio.run(scenario())
