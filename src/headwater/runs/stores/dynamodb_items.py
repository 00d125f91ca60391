"""The items of the DynamoDB store: values in, attributes out, and back.

All items of a run share its partition:

    head              how far the log is, the run's status, whether it was deleted
    e#<number>        an event; numbers have 19 digits, so that they sort
    k#<sha256>        a key, and the number of its event; hashed, since a sort key has 1,024 bytes
    checkpoint        how far the projection is

Only heads have the attributes of the two indexes: `shard` with `changed`, and with `created`.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from headwater.errors import RunQueryRefused
from headwater.runs.events import Document, instant_of
from headwater.runs.store import RunInfo
from headwater.runs.values import RunStatus

Item = dict[str, dict[str, Any]]

HEAD: Final = "head"
CHECKPOINT: Final = "checkpoint"
SHARDS: Final = tuple(f"s{number}" for number in range(4))
BY_CHANGE: Final = "runs-by-change"
BY_CREATION: Final = "runs-by-creation"


class Head(NamedTuple):
    """The head of a run: the one item that every append changes."""

    run_id: str
    status: RunStatus = RunStatus.PENDING
    last_seq: int = 0
    created_at: str = ""
    updated_at: str = ""
    deleted: bool = False

    def item(self) -> Item:
        """Write it."""
        item: Item = {
            **key_of(self.run_id, HEAD),
            "status": {"S": self.status.value},
            "lastSeq": {"N": str(self.last_seq)},
            "createdAt": {"S": self.created_at},
            "updatedAt": {"S": self.updated_at},
            "deleted": {"BOOL": self.deleted},
            "shard": {"S": SHARDS[crc32(self.run_id.encode()) % len(SHARDS)]},
            "changed": {"S": self.updated_at},
        }
        if not self.deleted:
            item["created"] = {"S": f"{self.created_at}~{self.run_id}"}
        return item

    def info(self) -> RunInfo:
        """Say it in the store's words."""
        return RunInfo(
            self.run_id,
            self.status,
            self.last_seq,
            instant_of(self.created_at),
            instant_of(self.updated_at),
            self.deleted,
        )


def head_from(item: Item) -> Head:
    """Read a head."""
    return Head(
        item["run"]["S"],
        RunStatus(item["status"]["S"]),
        int(item["lastSeq"]["N"]),
        item["createdAt"]["S"],
        item["updatedAt"]["S"],
        item["deleted"]["BOOL"],
    )


def key_of(run_id: str, item: str) -> Item:
    """Name an item of a run."""
    return {"run": {"S": run_id}, "item": {"S": item}}


def event_name(run_seq: int) -> str:
    """Name the item of an event."""
    return f"e#{run_seq:019d}"


def key_name(idempotency_key: str) -> str:
    """Name the item of a key."""
    return f"k#{sha256(idempotency_key.encode()).hexdigest()}"


def event_items(document: Document, run_seq: int, at: str) -> tuple[Item, Item]:
    """Write an event and its key."""
    event = {
        **key_of(document.run_id, event_name(run_seq)),
        "at": {"S": at},
        "body": {"S": document.body.decode()},
    }
    key = {
        **key_of(document.run_id, key_name(document.idempotency_key)),
        "seq": {"N": str(run_seq)},
    }
    return event, key


def event_from(item: Item) -> tuple[int, str, bytes]:
    """Read the number, the moment and the document of an event."""
    return int(item["item"]["S"][2:]), item["at"]["S"], item["body"]["S"].encode()


class ChangeWindow(NamedTuple):
    """What a reader of changes has seen: all before a moment, and some runs since.

    A change carries the clock of its writer and shows in the index a little later. So whatever is
    younger than the window is looked at again, and what was named before is left out.
    """

    since: str = ""
    seen: dict[str, str] = {}  # noqa: RUF012 - never changed
    """When each run that was named since then had changed."""

    @classmethod
    def parse(cls, mark: str) -> "ChangeWindow":
        """Read a mark; "" is before everything."""
        if not mark:
            return cls()
        try:
            since, seen = msgspec.json.decode(mark, type=tuple[str, dict[str, str]])
        except msgspec.MsgspecError:
            expected = "the mark of an earlier answer of this store"
            raise RunQueryRefused("mark", mark, expected) from None
        return cls(since, seen)

    def __str__(self) -> str:
        return msgspec.json.encode((self.since, self.seen)).decode()

    def is_new(self, head: Head) -> bool:
        """Say whether this change was not named yet."""
        return self.seen.get(head.run_id) != head.updated_at

    def behind(self, named: Sequence[Head], horizon: str, *, is_cut: bool) -> "ChangeWindow":
        """Go on behind what is being named now, in the order of `changed`.

        It never goes on past the horizon, nor past the last one where the answer was cut off.
        """
        since = min(horizon, named[-1].updated_at) if is_cut else horizon
        since = max(since, self.since)
        seen = self.seen | {head.run_id: head.updated_at for head in named}
        return ChangeWindow(since, {run: at for run, at in seen.items() if at >= since})
