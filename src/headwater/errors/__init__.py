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
    │   ├── TableForeign           a table of others is to be written to
    │   ├── TableUnreadable        a table of others is of a kind that is not read
    │   ├── TableAhead             a table holds later batches of a query than it is given
    │   ├── TableChanged           someone else changed a table while a batch was written to it
    │   ├── TableLost              a table lacks what a query has written before
    │   ├── TableSchemaRefused     a column of a table can't become what the new schema says
    │   ├── BatchRefused           a stream takes nothing of this batch
    │   ├── StreamDiffers          a stream holds something else than what has to be there
    │   ├── ArchiveError           an archive can't do what it was asked to
    │   │   ├── NotAnArchive       there is no archive in the folder
    │   │   ├── ArchiveDamaged     files of it are missing, or hold something else
    │   │   ├── ArchiveGap         messages are missing between what it holds
    │   │   └── ArchiveOvertaken   another query has archived the same meanwhile
    │   ├── RestoreRefused         streams could not be restored
    │   ├── SnapshotRefused        a snapshot of a stream can't be made
    │   └── PipelineError          a pipeline can't run, or has failed
    │       ├── NoSpark            PySpark is not installed
    │       ├── BadPipeline        its file says what can't be done
    │       ├── CheckpointTaken    another process runs on its checkpoint
    │       ├── NotACheckpoint     no pipeline has run on a folder
    │       ├── CheckpointUnreadable  a file of its checkpoint is not what Spark writes
    │       ├── CheckpointUnwritable  its folder takes no files
    │       └── MetricsUnwritable     figures can't be written to their file
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

from headwater.errors.base import (
    CannotListen,
    HeadwaterError,
    SettingsError,
)
from headwater.errors.client import (
    BadData,
    BodyTooLarge,
    ClientClosed,
    ClientError,
    ConnectionLost,
    ContentTypeMismatch,
    LeaseLost,
    OffsetGone,
    Overloaded,
    ProducerClosed,
    ProducerError,
    ProducerFenced,
    ProducerGap,
    ProducerReused,
    QueueFull,
    RequestRefused,
    ServerFailed,
    StreamClosed,
    StreamExists,
    StreamGone,
    StreamNotFound,
    StreamRecreated,
    StreamSeqRegression,
    Undelivered,
    UnexpectedAnswer,
    Unreachable,
)
from headwater.errors.runs import (
    CacheUnavailable,
    EventRefused,
    KeyFieldRefused,
    RunDeleted,
    RunError,
    RunLogDamaged,
    RunNotFound,
    RunQueryRefused,
    RunStoreDamaged,
    RunStoreUnavailable,
    UnknownContract,
)
from headwater.errors.spark import (
    ArchiveDamaged,
    ArchiveError,
    ArchiveGap,
    ArchiveOvertaken,
    BadOption,
    BadPipeline,
    BadRow,
    BatchRefused,
    CheckpointTaken,
    CheckpointUnreadable,
    CheckpointUnwritable,
    CorruptMessage,
    MetricsUnwritable,
    NoJava,
    NoSpark,
    NotACheckpoint,
    NotAnArchive,
    PipelineError,
    RestoreRefused,
    SnapshotRefused,
    SparkError,
    StreamDiffers,
    StreamLost,
    TableAhead,
    TableChanged,
    TableForeign,
    TableLost,
    TableSchemaRefused,
    TableTaken,
    TableUnreadable,
)
from headwater.errors.state import (
    CollectionStopped,
    InvalidEvent,
    InvalidValue,
    NotStateEvents,
    SchemaError,
    StateError,
    StateFileError,
    StateNotReady,
    StateStopped,
    TxidTimeout,
)
from headwater.errors.store import (
    NewerFormat,
    StoreDamaged,
    StoreError,
    StoreLocked,
    StoreNotOpen,
    StreamDamaged,
)

__all__ = [
    "ArchiveDamaged",
    "ArchiveError",
    "ArchiveGap",
    "ArchiveOvertaken",
    "BadData",
    "BadOption",
    "BadPipeline",
    "BadRow",
    "BatchRefused",
    "BodyTooLarge",
    "CacheUnavailable",
    "CannotListen",
    "CheckpointTaken",
    "CheckpointUnreadable",
    "CheckpointUnwritable",
    "ClientClosed",
    "ClientError",
    "CollectionStopped",
    "ConnectionLost",
    "ContentTypeMismatch",
    "CorruptMessage",
    "EventRefused",
    "HeadwaterError",
    "InvalidEvent",
    "InvalidValue",
    "KeyFieldRefused",
    "LeaseLost",
    "MetricsUnwritable",
    "NewerFormat",
    "NoJava",
    "NoSpark",
    "NotACheckpoint",
    "NotAnArchive",
    "NotStateEvents",
    "OffsetGone",
    "Overloaded",
    "PipelineError",
    "ProducerClosed",
    "ProducerError",
    "ProducerFenced",
    "ProducerGap",
    "ProducerReused",
    "QueueFull",
    "RequestRefused",
    "RestoreRefused",
    "RunDeleted",
    "RunError",
    "RunLogDamaged",
    "RunNotFound",
    "RunQueryRefused",
    "RunStoreDamaged",
    "RunStoreUnavailable",
    "SchemaError",
    "ServerFailed",
    "SettingsError",
    "SnapshotRefused",
    "SparkError",
    "StateError",
    "StateFileError",
    "StateNotReady",
    "StateStopped",
    "StoreDamaged",
    "StoreError",
    "StoreLocked",
    "StoreNotOpen",
    "StreamClosed",
    "StreamDamaged",
    "StreamDiffers",
    "StreamExists",
    "StreamGone",
    "StreamLost",
    "StreamNotFound",
    "StreamRecreated",
    "StreamSeqRegression",
    "TableAhead",
    "TableChanged",
    "TableForeign",
    "TableLost",
    "TableSchemaRefused",
    "TableTaken",
    "TableUnreadable",
    "TxidTimeout",
    "Undelivered",
    "UnexpectedAnswer",
    "UnknownContract",
    "Unreachable",
]

for _name in __all__:
    # What people see in a traceback, and what is pickled, is the name that they import.
    globals()[_name].__module__ = __name__
