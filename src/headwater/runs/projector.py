"""The projector: follows all runs of a store and keeps their snapshots fresh.

It asks the store which runs have changed, reads what is new of each, and keeps checkpoints, which
are the materialised snapshots too. After a crash it goes on from them: applying an event twice
changes nothing. It measures how far behind it is and raises alerts.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from headwater.errors import HeadwaterError, RunLogDamaged, RunQueryRefused
from headwater.runs import alerts as codes
from headwater.runs.alerts import Alerts, alert
from headwater.runs.events import StoredEvent
from headwater.runs.lags import Lags, Metrics, RunLag
from headwater.runs.positions import Position, load_position, save_position
from headwater.runs.projection import Health, Progress, Projection
from headwater.runs.projector_options import Options, Resync
from headwater.runs.store import PAGE, Changes, Checkpoint, RunInfo, RunStore
from headwater.runs.values import RunSnapshot

__all__ = ["Metrics", "Options", "Projector", "Resync", "RunLag"]

log: Final = logging.getLogger("headwater.runs")

_ZERO: Final = timedelta(0)
_MAX_AGAIN: Final = 1000
"""Runs that a position may name."""
_FIRST_PAGE: Final = 200
"""Events that are read of each run where many are read at once; who has more is read on alone."""


class Projector:
    """Follows a store that is open; `run` it in a task, or `catch_up` by hand."""

    def __init__(
        self,
        store: RunStore,
        options: Options | None = None,
        *,
        on_alert: Alerts | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._options = options or Options()
        self._raise = on_alert or Alerts()
        self._clock = clock
        self._mark: str | None = None
        self._kept_position = Position()
        self._kept_at = time.monotonic()
        self._loaded: OrderedDict[str, Projection] = OrderedDict()
        self._lags = Lags(self._options.measured_events)
        self._stale: set[str] = set()
        self._lagging: set[str] = set()
        self._damaged: dict[str, int] = {}
        self._stopping = asyncio.Event()

    # Running

    async def run(self) -> None:
        """Follow the store until `stop` is called; an outage of the store is waited out."""
        options = self._options
        while not self._stopping.is_set():
            try:
                await self.catch_up()
                await self._keep_position()
            except HeadwaterError as error:
                log.warning("the run store can't be used; trying again: %s", error)
                self._check_lag()
                await self._pause(options.retry_seconds)
                continue
            seconds = options.wait_seconds
            if self._stale:
                seconds = min(seconds, max(0.01, options.grace_seconds / 10))
            await self._wait(seconds)
        with suppress(HeadwaterError):  # the next one has a little more to look at
            await self._keep_position(at_once=True)

    def stop(self) -> None:
        """End `run` after what is under way."""
        self._stopping.set()

    async def _wait(self, seconds: float) -> None:
        """Wait for a change, the end, or some seconds."""
        waiting = asyncio.ensure_future(self._store.wait(self._mark or "", seconds))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not waiting.done():
            waiting.cancel()
        with suppress(HeadwaterError, asyncio.CancelledError):
            await waiting  # an outage shows again with the next question

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def catch_up(self) -> int:
        """Project all that the store has now; says how many events that were.

        The mark moves only behind what is projected and kept: what fails is seen again.
        """
        count = 0
        if self._mark is None:
            count += await self._resume()
        while True:
            changes = await self._changes()
            wanted = self._note(changes.runs)
            # A gap may have been filled without the head moving.
            wanted |= dict.fromkeys(self._stale)
            count += await self._project(list(wanted))
            if not changes.runs or changes.mark == self._mark:
                return count
            self._mark = changes.mark

    async def _resume(self) -> int:
        """Go on where the last projector has stopped; says how many events that gave."""
        position = self._kept_position = await load_position(self._store)
        count = await self._project(list(position.again))
        self._mark = position.mark
        return count

    async def _changes(self) -> Changes:
        mark = self._mark or ""
        try:
            return await self._store.changes(mark)
        except RunQueryRefused as error:
            log.warning("the mark is none of this store; looking at all runs: %s", error)
            self._mark = ""
            return await self._store.changes("")

    async def _keep_position(self, *, at_once: bool = False) -> None:
        """Keep how far we are, now and then: it saves time at the next start, nothing else."""
        now = time.monotonic()
        if not at_once and now - self._kept_at < self._options.position_seconds:
            return
        again = tuple(sorted(self._stale | set(self._damaged)))
        position = Position(self._mark or "", again)
        if position == self._kept_position or len(again) > _MAX_AGAIN:
            return
        await save_position(self._store, position)
        self._kept_position, self._kept_at = position, now

    def _note(self, infos: tuple[RunInfo, ...]) -> dict[str, None]:
        wanted: dict[str, None] = {}
        for info in infos:
            if info.deleted:
                self._forget(info.run_id)
                continue
            loaded = self._loaded.get(info.run_id)
            if loaded is not None and loaded.applied_seq >= info.last_event_seq:
                continue
            if self._damaged.get(info.run_id) == info.last_event_seq:
                continue
            wanted[info.run_id] = None
            self._lags.heard(info.run_id, info.updated_at, info.last_event_seq)
        return wanted

    def _forget(self, run_id: str) -> None:
        self._loaded.pop(run_id, None)
        self._lags.forget(run_id)
        self._stale.discard(run_id)
        self._lagging.discard(run_id)
        self._damaged.pop(run_id, None)

    async def _project(self, run_ids: list[str]) -> int:
        count = 0
        size = self._options.concurrency
        for start in range(0, len(run_ids), size):
            group = run_ids[start : start + size]
            done = await self._advance_all(group)
            moved = [each for each in done if each is not None]
            try:
                await self._store.save_checkpoints([each[0].checkpoint() for each in moved])
            except BaseException:
                # What is not kept does not count as applied: it is read again.
                for projection, _ in moved:
                    self._loaded.pop(projection.run_id, None)
                raise
            for projection, persisted in moved:
                count += len(persisted)
                self._kept(projection, persisted)
        return count

    async def _advance_all(
        self, run_ids: list[str]
    ) -> list[tuple[Projection, list[datetime]] | None]:
        """Read what is new of runs, with one question for most of it."""
        # What can't be loaded is told by whoever advances it.
        loaded = await asyncio.gather(*map(self._load, run_ids), return_exceptions=True)
        wanted = [
            (each.run_id, each.read_from)
            for each in loaded
            if isinstance(each, Projection) and not each.has_gap
        ]
        pages: dict[str, list[StoredEvent]] = {}
        with suppress(RunLogDamaged):  # found again by reading them one by one
            found = await self._store.fetch_each(wanted, _FIRST_PAGE)
            pages = {run_id: page for (run_id, _), page in zip(wanted, found, strict=True)}
        return await asyncio.gather(*(self._advance(each, pages.get(each)) for each in run_ids))

    async def _advance(
        self, run_id: str, page: list[StoredEvent] | None
    ) -> tuple[Projection, list[datetime]] | None:
        """Read what is new of a run and apply it; gives it where there is something to keep.

        `page` holds its next events, where they were read already.
        """
        try:
            projection, persisted, moved = await self._read_on(await self._load(run_id), page)
        except RunLogDamaged as error:
            self._give_up(run_id, error)
            return None
        if not moved:
            self._kept(projection, [])
            return None
        return projection, persisted

    async def _read_on(
        self, projection: Projection, page: list[StoredEvent] | None
    ) -> tuple[Projection, list[datetime], bool]:
        """Take in all that the store has of a run: page by page, or whole where there is a gap."""
        run_id = projection.run_id
        persisted: list[datetime] = []
        moved = run_id in self._stale
        more = True
        while more:
            if page is None:
                events = await self._store.fetch_events(run_id, projection.read_from, PAGE)
                more = len(events) == PAGE
            else:
                events, page = page, None
                more = len(events) == _FIRST_PAGE
            if more and projection.has_gap:
                events = [each async for each in self._store.events(run_id, projection.read_from)]
                more = False
            now = self._clock()
            fresh = [each.persisted_at for each in events if each.run_seq > projection.applied_seq]
            if fresh:
                self._lags.read(run_id, min(fresh), events[-1].run_seq)
                if self._check_lag_of(run_id, now):
                    # Far behind: whatever we hold is not trusted, and read again from the store.
                    projection = await self._reload(run_id)
                    persisted, more = [], True
                    continue
            progress = projection.take(events, now)
            self._report(projection, progress, now)
            persisted += fresh
            moved = moved or bool(progress.applied or progress.given_up)
        return projection, persisted, moved

    async def _reload(self, run_id: str) -> Projection:
        """Go back to the checkpoint, or to nothing, as the options say."""
        checkpoint = None
        if self._options.resync is Resync.FROM_SNAPSHOT:
            checkpoint = await self._store.load_checkpoint(run_id)
        projection = self._loaded[run_id] = self._projection(run_id, checkpoint)
        projection.health = Health.RESYNCING
        return projection

    async def _load(self, run_id: str) -> Projection:
        found = self._loaded.get(run_id)
        if found is None:
            checkpoint = await self._store.load_checkpoint(run_id)
            found = self._loaded[run_id] = self._projection(run_id, checkpoint)
        self._loaded.move_to_end(run_id)
        return found

    def _projection(self, run_id: str, checkpoint: Checkpoint | None) -> Projection:
        return Projection(
            run_id,
            checkpoint,
            gaps_are_final=self._store.gaps_are_final,
            grace=timedelta(seconds=self._options.grace_seconds),
        )

    def _kept(self, projection: Projection, persisted: list[datetime]) -> None:
        """Take note that a projection is in the store."""
        run_id = projection.run_id
        if self._lags.kept(run_id, projection.applied_seq, persisted, self._clock()):
            self._lagging.discard(run_id)
        if projection.health is Health.LIVE:
            self._stale.discard(run_id)
        else:
            self._stale.add(run_id)
        while len(self._loaded) > self._options.max_loaded_runs:
            self._loaded.popitem(last=False)

    def _give_up(self, run_id: str, error: RunLogDamaged) -> None:
        last_seq = self._lags.forget(run_id)
        self._forget(run_id)
        self._damaged[run_id] = last_seq
        self._raise(alert(codes.RUN_UNREADABLE, run_id, str(error), self._clock()))

    def _report(self, projection: Projection, progress: Progress, now: datetime) -> None:
        run_id = projection.run_id
        for gap in progress.opened:
            what = str(gap.first) if gap.first == gap.last else f"{gap.first} to {gap.last}"
            text = f"runSeq {what} is missing below {gap.last + 1}; resyncing"
            self._raise(alert(codes.NON_CONTIGUOUS, run_id, text, now))
        for gap in progress.given_up:
            log.info("gap is permanent run=%s from=%d to=%d", run_id, gap.first, gap.last)
        if progress.late:
            log.info("late events were put in place run=%s seqs=%s", run_id, progress.late[:20])
        for invalid in progress.invalid:
            text = f"{invalid.event_type} with runSeq {invalid.run_seq}: {invalid.reason}"
            self._raise(alert(codes.INVALID_TRANSITION, run_id, text, now))

    # Resyncing

    async def resync(self, run_id: str, mode: Resync | None = None) -> RunSnapshot | None:
        """Project a run again; gives its snapshot, or None where it is unknown or deleted.

        It is complete once the watermark has passed what was there: until then it is RESYNCING.
        """
        mode = mode or self._options.resync
        if await self._store.find_run(run_id) is None:
            self._forget(run_id)
            return None
        checkpoint = None
        if mode is Resync.FROM_SNAPSHOT:
            checkpoint = await self._store.load_checkpoint(run_id)
        before = self._loaded.get(run_id)
        projection = self._projection(run_id, checkpoint)
        projection.health = Health.RESYNCING
        self._loaded[run_id] = projection
        events = [each async for each in self._store.events(run_id, projection.read_from)]
        progress = projection.take(events, self._clock())
        if before is None:
            self._report(projection, progress, self._clock())
        await self._store.save_checkpoints([projection.checkpoint()])
        self._kept(projection, [])
        return projection.snapshot()

    # Measuring

    def health(self, run_id: str) -> Health:
        """Say whether a run's snapshot can be trusted."""
        loaded = self._loaded.get(run_id)
        if loaded is not None:
            return loaded.health
        return Health.STALE if run_id in self._stale or run_id in self._damaged else Health.LIVE

    async def lag_of(self, run_id: str) -> RunLag:
        """Measure how far a run's projection is behind, by asking the store."""
        loaded = self._loaded.get(run_id)
        applied = loaded.applied_seq if loaded is not None else 0
        if loaded is None:
            checkpoint = await self._store.load_checkpoint(run_id)
            applied = checkpoint.last_event_seq if checkpoint is not None else 0
        oldest = await self._store.fetch_events(run_id, applied, 1)
        if not oldest:
            return RunLag(0.0, 0)
        count = 0
        async for _ in self._store.events(run_id, applied):
            count += 1
        seconds = max(_ZERO, self._clock() - oldest[0].persisted_at).total_seconds()
        return RunLag(seconds, count)

    def metrics(self) -> Metrics:
        """Say how the projector is doing."""
        return self._lags.metrics(self._clock(), self._applied_seq, len(self._stale))

    def _applied_seq(self, run_id: str) -> int:
        loaded = self._loaded.get(run_id)
        return 0 if loaded is None else loaded.applied_seq

    def _check_lag(self) -> None:
        now = self._clock()
        for run_id in self._lags:
            self._check_lag_of(run_id, now)

    def _check_lag_of(self, run_id: str, now: datetime) -> bool:
        """Alert once for each time that a run falls behind; says whether it needs a resync."""
        lag = self._lags.seconds(run_id, now)
        options = self._options
        if lag > options.lag_alert_seconds and run_id not in self._lagging:
            self._lagging.add(run_id)
            text = f"its snapshot is {lag:.1f} s behind; at most {options.lag_alert_seconds:g} s"
            self._raise(alert(codes.LAG_HIGH, run_id, text, now))
            return lag > options.lag_resync_seconds
        return False
