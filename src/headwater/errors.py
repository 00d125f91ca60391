"""Every error that Headwater raises, as one tree.

    HeadwaterError
    ├── SettingsError              an option or environment variable can't be used
    ├── CannotListen               the address can't be listened on
    ├── StoreError                 the store can't do what it was asked to
    │   ├── StoreNotOpen           it has not been opened, or is closed already
    │   ├── StoreLocked            another process uses its directory
    │   ├── NewerFormat            a file was written by a newer version
    │   ├── StoreDamaged           a file does not hold what its checksum says
    │   └── StreamDamaged          bytes of one stream don't hold what their checksum says
    ├── RunError                   the run store can't do what it was asked to
    │   ├── EventRefused           an event does not keep the contract, so nothing was written
    │   │   ├── KeyFieldRefused    a field can't be part of an idempotency key
    │   │   └── UnknownContract    it was written for another major version of the contract
    │   ├── RunQueryRefused        a question about runs can't be answered as it was asked
    │   ├── RunNotFound            no such run, or it was deleted
    │   ├── RunDeleted             the run was deleted and takes no more events
    │   ├── RunLogDamaged          a stored event or checkpoint can't be read
    │   ├── RunStoreDamaged        the file that keeps runs can't be read
    │   ├── CacheUnavailable       a cache of snapshots can't be used now; the store still can
    │   └── RunStoreUnavailable    the store behind can't be used now; the same call may be repeated
    ├── StateError                 a state stream, or what is built from it, can't be used
    │   ├── NotStateEvents         a batch is no JSON array of messages
    │   ├── InvalidEvent           a message breaks a rule of the state protocol
    │   ├── InvalidValue           a value does not fit the schema of its type
    │   ├── SchemaError            collections or their schemas can't be used
    │   ├── StateNotReady          the state has not been loaded yet
    │   ├── StateStopped           the database does not follow its stream any more
    │   ├── CollectionStopped      a collection met a value that its policy stops at
    │   ├── StateFileError         a state file can't be used
    │   └── TxidTimeout            a transaction was not seen in time
    ├── SparkError                 the Spark source or sink can't do what it was asked to
    │   ├── NoJava                 there is no Java that Spark can run on
    │   ├── BadOption              an option of the source or the sink can't be used
    │   ├── CorruptMessage         a message is not what the chosen mode reads
    │   ├── StreamLost             a stream was deleted or recreated under a running query
    │   ├── BadRow                 a row can't be written to a stream
    │   ├── TableTaken             a table holds rows of another query
    │   ├── TableChanged           someone else changed a table while a batch was written to it
    │   ├── TableSchemaRefused     a column of a table can't become what the new schema says
    │   ├── BatchRefused           a stream takes nothing of this batch
    │   ├── StreamDiffers          a stream holds something else than what has to be there
    │   ├── ArchiveError           an archive can't do what it was asked to
    │   │   ├── NotAnArchive       there is no archive in the folder
    │   │   ├── ArchiveDamaged     files of it are missing, or hold something else
    │   │   └── ArchiveGap         messages are missing between what it holds
    │   ├── RestoreRefused         streams could not be restored
    │   ├── SnapshotRefused        a snapshot of a stream can't be made
    │   └── PipelineError          a pipeline can't run, or has failed
    │       ├── NoSpark            PySpark is not installed
    │       ├── BadPipeline        its file says what can't be done
    │       ├── CheckpointTaken    another process runs on its checkpoint
    │       └── CheckpointUnreadable  a file of its checkpoint is not what Spark writes
    └── ClientError                a request to a stream server has failed
        ├── ClientClosed           the client was closed, so nothing was sent
        ├── Unreachable            no connection could be made, so nothing was sent
        ├── ConnectionLost         the connection broke before the whole answer came
        ├── UnexpectedAnswer       the answer does not follow the protocol
        │   └── BadData            what the stream holds is not what its content type says
        ├── ProducerError          the producer can't take or send an item
        │   ├── ProducerClosed     it was closed, or has failed for good
        │   ├── QueueFull          its queue is full, and it was told not to wait
        │   └── Undelivered        the item was not sent, because of an earlier failure
        ├── LeaseLost              the worker's lease went to another worker
        └── RequestRefused         the server said no, for a cause without a class of its own
            ├── StreamNotFound     404: no stream is there
            ├── StreamGone         410: it was deleted, and serves only its forks
            ├── OffsetGone         410: the offset is from a stream or data that is gone
            │   └── StreamRecreated   the stream was deleted and created again meanwhile
            ├── StreamExists       409: a stream with another configuration is there
            ├── StreamClosed       409: it takes no more appends
            ├── ContentTypeMismatch   409: the stream holds another content type
            ├── StreamSeqRegression   409: Stream-Seq did not increase
            ├── ProducerFenced     403: a newer session of this producer has taken over
            ├── ProducerGap        409: the producer skipped a sequence number
            ├── ProducerReused     200, 204: another writer has used this producer's numbers
            ├── BodyTooLarge       413: the body is over the server's limit
            ├── Overloaded         429, 503: the server asks to come back later
            └── ServerFailed       5xx: the server could not do it

What the protocol refuses (a missing stream, a fenced producer, a closed stream) is not an error on
the server's side but an answer: see `headwater.protocol.refusals`. A client raises it as an error.
"""

from collections.abc import Sequence


class HeadwaterError(Exception):
    """The root: catch this to catch everything that Headwater raises."""


class SettingsError(HeadwaterError):
    """An option or environment variable has a value that can't be used."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name}={value!r} can't be used: expected {expected}.")
        self.name = name
        self.value = value
        self.expected = expected


class CannotListen(HeadwaterError):
    """The address can't be listened on: it is taken, not ours, or not allowed."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"Can't listen on {host}:{port}: {reason}. Choose another --host or --port."
        )
        self.host = host
        self.port = port


class StoreError(HeadwaterError):
    """The store can't do what it was asked to."""


class StoreNotOpen(StoreError):
    """The store has not been opened, or is closed already."""

    def __init__(self) -> None:
        super().__init__("The store is not open: open it before use, and don't use it once closed.")


class StoreLocked(StoreError):
    """Another process uses the directory."""

    def __init__(self, folder: str, holder: str) -> None:
        who = f"process {holder}" if holder else "another process"
        super().__init__(
            f"'{folder}' is in use by {who}: only one server may write to a data directory. "
            "Stop it, or choose another --store."
        )
        self.folder = folder
        self.holder = holder


class NewerFormat(StoreError):
    """A file was written by a newer version of Headwater."""

    def __init__(self, file: str, version: int, known: int) -> None:
        super().__init__(
            f"'{file}' has format {version}, and this Headwater knows formats up to {known}: "
            "use the version that wrote it, or a newer one."
        )
        self.file = file
        self.version = version


class StoreDamaged(StoreError):
    """A file of the store does not hold what its checksum says."""

    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(
            f"'{file}' is damaged at byte {position}: {reason}. Nothing was changed. Look at the "
            "damage with 'headwater check DIR', save the rest with 'headwater repair DIR'."
        )
        self.file = file
        self.position = position
        self.reason = reason


class StreamDamaged(StoreError):
    """Bytes of one stream don't hold what their checksum says; other streams are not affected."""

    def __init__(self, file: str, position: int, stream: int) -> None:
        super().__init__(
            f"stream {stream} can't be read: '{file}' is damaged at byte {position}. "
            "'headwater check DIR' lists all damage, 'headwater repair DIR' drops it."
        )
        self.file = file
        self.position = position
        self.stream = stream


class RunError(HeadwaterError):
    """The run store can't do what it was asked to."""

    code = "RUN_ERROR"
    """A stable name of the cause, as it is written on the wire."""


class EventRefused(RunError):
    """An event does not keep the contract; nothing of its batch was written."""

    code = "SCHEMA_VALIDATION_FAILED"

    def __init__(self, reason: str, *, run_id: str = "", event_type: str = "") -> None:
        what = f"{event_type} of run '{run_id}'" if event_type and run_id else "the event"
        super().__init__(f"Nothing was written: {what} is refused, since {reason}.")
        self.reason = reason
        self.run_id = run_id
        self.event_type = event_type


class KeyFieldRefused(EventRefused):
    """A field can't be part of an idempotency key."""

    def __init__(self, name: str, value: str) -> None:
        super().__init__(f"{name}={value!r} holds '|', which separates the fields of the key")
        self.name = name
        self.value = value


class UnknownContract(EventRefused):
    """The event was written for another major version of the contract."""

    code = "CONTRACT_VERSION_UNSUPPORTED"

    def __init__(self, version: str, known: str) -> None:
        super().__init__(
            f"its contractVersion is {version!r}, and this Headwater knows {known}: "
            "use a Headwater that knows it"
        )
        self.version = version


class RunQueryRefused(RunError):
    """A question about runs can't be answered as it was asked."""

    code = "BAD_QUERY"

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name}={value!r} can't be used: expected {expected}.")
        self.name = name
        self.value = value


class RunNotFound(RunError):
    """No such run, or it was deleted."""

    code = "RUN_NOT_FOUND"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"There is no run '{run_id}': append its first event, or list what is there with "
            "'headwater runs list'."
        )
        self.run_id = run_id


class RunDeleted(RunError):
    """The run was deleted and takes no more events."""

    code = "RUN_DELETED"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Run '{run_id}' was deleted, and a deleted run takes no more events: "
            "use another run id."
        )
        self.run_id = run_id


class RunLogDamaged(RunError):
    """A stored event or checkpoint can't be read."""

    code = "RUN_LOG_DAMAGED"

    def __init__(self, run_id: str, place: str, reason: str) -> None:
        super().__init__(
            f"{place} of run '{run_id}' can't be read: {reason}. Other runs are not affected; "
            f"'headwater runs verify {run_id}' says what is left."
        )
        self.run_id = run_id


class RunStoreDamaged(RunError):
    """The file that keeps runs can't be read."""

    code = "RUN_STORE_DAMAGED"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"The runs in '{path}' can't be read: {reason}. Put back the file of a backup, or move "
            "it away, with its -wal and -shm files, to begin without runs; the streams beside it "
            "are not affected."
        )
        self.path = path
        self.reason = reason


class CacheUnavailable(RunError):
    """A cache of snapshots can't be used now; the store behind it still can."""

    code = "CACHE_UNAVAILABLE"

    def __init__(self, cache: str, reason: str) -> None:
        super().__init__(f"The cache at {cache} can't be used now: {reason}. Start it again.")
        self.cache = cache
        self.reason = reason


class RunStoreUnavailable(RunError):
    """The store behind can't be used now; the same call, with the same keys, may be repeated."""

    code = "STORE_UNAVAILABLE"

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(
            f"The run store at {store} can't be used now: {reason}. What was under way may have "
            "been written; repeat it with the same idempotency keys."
        )
        self.store = store
        self.reason = reason


class StateError(HeadwaterError):
    """A state stream, or what is built from it, can't be used."""


class NotStateEvents(StateError):
    """A batch is no JSON array of messages, so no event in it can be told."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"A batch can't be read as state events: {reason}. A state stream holds JSON: check "
            "that the URL names one."
        )
        self.reason = reason


class InvalidEvent(StateError):
    """A message breaks a rule of the state protocol."""

    def __init__(self, position: str, field: str, reason: str) -> None:
        where = f" at {position}" if position else ""
        what = f"{field} {reason}" if field else reason
        super().__init__(
            f"The message{where} is no state event: {what}. Mend what writes it; to read on all "
            "the same, quarantine or drop such messages."
        )
        self.position = position
        self.field = field
        self.reason = reason


class InvalidValue(StateError):
    """A value does not fit the schema of its type."""

    def __init__(self, type: str, key: str, reason: str) -> None:  # noqa: A002 - the wire's name
        super().__init__(f"The value of {type} '{key}' does not fit its schema: {reason}.")
        self.type = type
        self.key = key
        self.reason = reason


class SchemaError(StateError):
    """Collections or their schemas can't be used."""


class StateNotReady(StateError):
    """The state has not been loaded yet."""

    def __init__(self) -> None:
        super().__init__("The state has not been loaded: call preload() first.")


class StateStopped(StateError):
    """The database does not follow its stream any more; what it holds can still be read."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The database has stopped following its stream: {reason}")
        self.reason = reason


class CollectionStopped(StateError):
    """A collection met a value that its policy stops at; other collections go on."""

    def __init__(self, type: str, position: str, reason: str) -> None:  # noqa: A002 - the wire's name
        super().__init__(
            f"The collection of '{type}' stopped at {position}: {reason}. Mend the schema or the "
            "data, then restart() the database to load it anew."
        )
        self.type = type
        self.position = position
        self.reason = reason


class StateFileError(StateError):
    """A state file can't be used."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"'{file}' can't be used for this state: {reason}")
        self.file = file
        self.reason = reason


class TxidTimeout(StateError):
    """A transaction was not seen on the stream in time."""

    def __init__(self, txid: str, seconds: float) -> None:
        super().__init__(
            f"Transaction '{txid}' was not seen within {seconds:g} seconds: it may still come."
        )
        self.txid = txid
        self.seconds = seconds


class ClientError(HeadwaterError):
    """A request to a stream server has failed; `hint` says what to do next."""

    hint: str = "Try again, and look at the server's log if it stays."

    def __init__(
        self,
        message: str,
        *,
        url: str,
        status: int | None = None,
        code: str = "",
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.url = url
        self.status = status
        """The HTTP status, or None where there was no answer."""
        self.code = code
        """A stable name of the cause, where the server or this client gives one."""
        if hint is not None:
            self.hint = hint


class ClientClosed(ClientError):
    """The client was closed, so nothing was sent."""

    hint = "Make another client."

    def __init__(self, url: str) -> None:
        super().__init__("The client is closed; make another one.", url=url, code="client-closed")


class Unreachable(ClientError):
    """No connection could be made, so nothing was sent."""

    hint = "Start the server, or check the URL."

    def __init__(self, url: str, origin: str, reason: str) -> None:
        super().__init__(
            f"Can't reach {origin}: {reason}. Start the server, or check the URL.",
            url=url,
            code="unreachable",
        )
        self.reason = reason


class ConnectionLost(ClientError):
    """The connection broke before the whole answer came: the request may have been carried out."""

    hint = "Try again."

    def __init__(self, url: str, origin: str, reason: str, advice: str = "Try again.") -> None:
        super().__init__(
            f"The connection to {origin} broke: {reason}. {advice}",
            url=url,
            code="connection-lost",
            hint=advice,
        )
        self.reason = reason


class UnexpectedAnswer(ClientError):
    """The answer does not follow the protocol: the URL may belong to another kind of server."""

    hint = "Check that the URL is that of a stream."


class BadData(UnexpectedAnswer):
    """What the stream holds is not what its content type says."""

    hint = "Read it as bytes, and look at who writes to the stream."

    def __init__(self, url: str, offset: str, reason: str) -> None:
        super().__init__(
            f"The data of {url} at offset {offset} can't be read: {reason}.",
            url=url,
            code="bad-data",
        )
        self.offset = offset


class ProducerError(ClientError):
    """The producer can't take or send an item."""


class ProducerClosed(ProducerError):
    """The producer was closed, or has failed for good, and takes nothing more."""

    hint = "Make another producer; its saved state goes on where this one stood."

    def __init__(self, url: str, why: str = "it was closed") -> None:
        super().__init__(
            f"The producer for {url} takes nothing more: {why}.", url=url, code="producer-closed"
        )


class QueueFull(ProducerError):
    """The producer's queue is full, and it was told not to wait."""

    hint = "Append later, make the queue larger, or let the producer wait with on_full='block'."

    def __init__(self, url: str, items: int, size: int) -> None:
        super().__init__(
            f"The producer for {url} has {items} items ({size} bytes) waiting, its limit.",
            url=url,
            code="queue-full",
        )


class Undelivered(ProducerError):
    """The item was not appended, because one before it failed; the cause is `__cause__`."""

    hint = "Look at the cause, then append the item with another producer."

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"The item was not appended to {url}, since one before it failed: {why}",
            url=url,
            code="undelivered",
        )


class LeaseLost(ClientError):
    """The worker's lease has gone to another worker: what it did since is not acked."""

    hint = "Nothing is to be done: the work is given to a worker again."

    def __init__(self, url: str, status: int | None = None) -> None:
        super().__init__(
            f"The lease of {url} is lost: the worker was silent for too long.",
            url=url,
            status=status,
            code="lease-lost",
        )


class RequestRefused(ClientError):
    """The server said no."""

    status: int

    def __init__(
        self, message: str, *, url: str, status: int, code: str, hint: str | None = None
    ) -> None:
        super().__init__(message, url=url, status=status, code=code, hint=hint)


class StreamNotFound(RequestRefused):
    """No stream is there: it never was, or it was deleted or has expired."""

    hint = "Create the stream, or check the path."


class StreamGone(RequestRefused):
    """The stream was deleted, and only its forks can still be read."""

    hint = "Read one of its forks, or use another path."


class OffsetGone(RequestRefused):
    """The offset is from a stream, or from data of it, that is gone."""

    hint = "Forget the saved offset, drop what was built from the stream, and read again from -1."


class StreamRecreated(OffsetGone):
    """The stream was deleted and created again: what was read belongs to the earlier one."""


class StreamExists(RequestRefused):
    """A stream with another configuration is there."""

    hint = "Use the stream as it is, or another path."


class StreamClosed(RequestRefused):
    """The stream is closed and takes no more appends."""

    hint = "Append to another stream: closing is for good."
    next_offset: str | None = None
    """Where the stream ends."""


class ContentTypeMismatch(RequestRefused):
    """The stream holds another content type."""

    hint = "Append with the content type that head() tells."


class StreamSeqRegression(RequestRefused):
    """`Stream-Seq` is not greater than the last one."""

    hint = "Another writer was here: read on from where you stood, then use a greater seq."


class ProducerFenced(RequestRefused):
    """A newer session of this producer has taken over."""

    hint = "Stop this producer, or take over with a greater epoch (auto_claim=True does it)."
    current_epoch: int | None = None


class ProducerGap(RequestRefused):
    """The producer skipped a sequence number."""

    hint = "Start a new session with a greater epoch: the server has lost track of this one."
    expected: int | None = None
    received: int | None = None


class ProducerReused(RequestRefused):
    """Another writer has used this producer's id, epoch and number: the batch was not appended."""

    hint = "Restore the saved state, or start a new session with a greater epoch."


class BodyTooLarge(RequestRefused):
    """The body is over the server's limit."""

    hint = "Send it in smaller appends."


class Overloaded(RequestRefused):
    """The server asks to come back later."""

    hint = "Try again later."
    retry_after: float | None = None
    """Seconds to wait, where the server says."""


class ServerFailed(RequestRefused):
    """The server could not do it."""

    hint = "Look at the server's log, then try again."
    retry_after: float | None = None
    """Seconds to wait, where the server says."""


class SparkError(HeadwaterError):
    """The Spark source or sink can't do what it was asked to."""


class NoJava(SparkError):
    """There is no Java that Spark can run on."""

    def __init__(self, found: str, least: int) -> None:
        super().__init__(
            f"Spark needs Java {least} or newer, and {found}. Install one (on Debian and Ubuntu: "
            f"apt-get install openjdk-{least}-jre-headless; on macOS: brew install openjdk@{least}"
            "), or set JAVA_HOME to one."
        )


class BadOption(SparkError):
    """An option of the source or the sink can't be used."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"option '{name}' can't be used: {reason}.")
        self.name = name
        self.reason = reason


class CorruptMessage(SparkError):
    """A message is not what the chosen mode reads."""

    def __init__(self, stream: str, offset: str, mode: str, reason: str) -> None:
        super().__init__(
            f"The message of '{stream}' that ends at offset {offset} can't be read in mode "
            f"'{mode}': {reason}. Have it put into a column with a '_corrupt' column in the schema "
            "or the option onCorrupt=column, or read it in mode 'raw'."
        )
        self.stream = stream
        self.offset = offset


class StreamLost(SparkError):
    """A stream was deleted or created anew since the query has read it."""

    def __init__(self, stream: str, offset: str, what: str) -> None:
        super().__init__(
            f"'{stream}' {what} since it was read up to offset {offset}: what it held behind that "
            "is gone. To go on without it, set the option failOnDataLoss to false."
        )
        self.stream = stream
        self.offset = offset


class BadRow(SparkError):
    """A row can't be written to a stream."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"A row can't be written: {reason}. Nothing of this batch was appended.")


class TableChanged(SparkError):
    """Someone else changed a table while a batch was written to it."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"The table {folder} was changed by someone else while a batch was written. Nothing of "
            "the batch is in it: have one query write to a table at a time, and start it again."
        )
        self.folder = folder


class TableSchemaRefused(SparkError):
    """A column of a table can't become what the new schema says."""

    def __init__(self, column: str, is_now: str, wanted: str) -> None:
        super().__init__(
            f"The column '{column}' is {is_now} in the table, and can't become {wanted}. Give the "
            "new column another name, or write to another folder from the start."
        )
        self.column = column


class TableTaken(SparkError):
    """A table holds rows of another query."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"The table in {folder} was written by a query with another checkpoint. Go on with "
            "that checkpoint, or write to another folder."
        )
        self.folder = folder


class BatchRefused(SparkError):
    """A stream takes nothing of this batch."""

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(f"'{stream}' did not take the batch: {reason}")
        self.stream = stream


class PipelineError(SparkError):
    """A pipeline can't run, or has failed."""


class NoSpark(PipelineError):
    """PySpark is not installed, or not whole."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"Pipelines need Spark, and the package {missing} is not installed. Install it with: "
            "pip install 'headwater[spark]'"
        )
        self.missing = missing


class BadPipeline(PipelineError):
    """A pipeline says what can't be done; `problems` are all of them."""

    def __init__(self, name: str, problems: Sequence[object]) -> None:
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"The pipeline {name} can't run:{lines}")
        self.name = name
        self.problems = problems


class CheckpointTaken(PipelineError):
    """Another process runs on the checkpoint."""

    def __init__(self, folder: str, holder: str) -> None:
        who = f"process {holder}" if holder else "another process"
        super().__init__(
            f"The checkpoint '{folder}' is in use by {who}: a pipeline runs once at a time. Stop "
            "that one, or give this pipeline another name or checkpoint."
        )
        self.folder = folder
        self.holder = holder


class CheckpointUnreadable(PipelineError):
    """A file of a checkpoint is not what Spark writes."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(
            f"'{file}' can't be read as a part of a checkpoint: {reason}. Restore it from a copy, "
            "or begin anew with another checkpoint."
        )
        self.file = file


class StreamDiffers(SparkError):
    """A stream holds something else than what has to be there."""

    def __init__(self, stream: str, offset: str, reason: str) -> None:
        super().__init__(
            f"'{stream}' does not hold what is to be written behind offset {offset}: {reason}. "
            "Nothing more was appended. Delete the stream, or choose another path."
        )
        self.stream = stream
        self.offset = offset


class ArchiveError(SparkError):
    """An archive can't do what it was asked to."""


class NotAnArchive(ArchiveError):
    """There is no archive in the folder."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(
            f"'{folder}' is no archive: {reason}. Name the folder that the archive job wrote."
        )
        self.folder = folder


class ArchiveDamaged(ArchiveError):
    """A file of an archive is missing, or does not hold what the archive says."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(
            f"The archive's file '{file}' can't be used: {reason}. Bring it back from a copy; "
            "what lies before it can be restored with an 'until'."
        )
        self.file = file


class ArchiveGap(ArchiveError):
    """Messages are missing between what an archive holds and what comes next."""

    def __init__(self, stream: str, reached: str, next_offset: str, advice: str) -> None:
        super().__init__(
            f"The archive of '{stream}' reaches offset {reached}, and the next that there is ends "
            f"at {next_offset}: what lies between is missing. {advice}"
        )
        self.stream = stream
        self.reached = reached


class RestoreRefused(SparkError):
    """Streams could not be restored."""

    def __init__(self, reasons: dict[str, str]) -> None:
        told = " ".join(f"'{path}': {reason}" for path, reason in sorted(reasons.items()))
        super().__init__(f"{len(reasons)} of the streams could not be restored. {told}")
        self.reasons = reasons


class SnapshotRefused(SparkError):
    """A snapshot of a stream can't be made."""

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(f"There is no snapshot of '{stream}': {reason}")
        self.stream = stream
