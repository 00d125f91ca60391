"""Every error that Headwater raises, as one tree.

    HeadwaterError
    ├── SettingsError              an option or environment variable can't be used
    ├── CannotListen               the server can't listen on an address
    ├── StoreError                 the store can't perform an operation
    │   ├── StoreNotOpen           it has not been opened, or is already closed
    │   ├── StoreLocked            another process uses the data directory
    │   ├── NewerFormat            a file was written by a newer version
    │   ├── StoreDamaged           a file does not match its checksum
    │   └── StreamDamaged          bytes of one stream do not match their checksum
    ├── RunError                   the run store can't perform an operation
    │   ├── EventRefused           an event violates the contract; nothing was written
    │   │   ├── KeyFieldRefused    a field can't be part of an idempotency key
    │   │   └── UnknownContract    the event has another major version of the contract
    │   ├── RunQueryRefused        a query for runs has a parameter that can't be used
    │   ├── RunNotFound            the run does not exist, or was deleted
    │   ├── RunDeleted             the run was deleted and accepts no more events
    │   ├── RunLogDamaged          a stored event or checkpoint can't be read
    │   ├── RunStoreDamaged        the database file of the run store can't be read
    │   ├── CacheUnavailable       a cache of snapshots is unavailable; the store is not affected
    │   └── RunStoreUnavailable    the database is unavailable; the call may be repeated
    ├── StateError                 a state stream, or what is built from one, can't be used
    │   ├── NotStateEvents         a batch is not a JSON array of messages
    │   ├── InvalidEvent           a message breaks a rule of the state protocol
    │   ├── InvalidValue           a value does not fit the schema of its type
    │   ├── SchemaError            collections or their schemas can't be used
    │   ├── StateNotReady          the state has not been loaded
    │   ├── StateStopped           the database no longer follows its stream
    │   ├── CollectionStopped      a collection stopped at an invalid value
    │   ├── StateFileError         a state file can't be used
    │   └── TxidTimeout            a transaction was not seen in time
    ├── SparkError                 the source, the sink or a job can't perform an operation
    │   ├── NoJava                 no suitable Java was found for Spark
    │   ├── BadOption              an option of the source or the sink can't be used
    │   ├── CorruptMessage         a message can't be read in the chosen mode
    │   ├── StreamLost             a stream was deleted or created again under a running query
    │   ├── BadRow                 a row can't be written to a stream
    │   ├── TableTaken             a table was written by another query
    │   ├── TableForeign           a table not created by Headwater can't be written to
    │   ├── TableUnreadable        a table not created by Headwater can't be read
    │   ├── TableAhead             a table already holds later batches of a query
    │   ├── TableChanged           another writer changed a table during a batch
    │   ├── TableLost              a table lacks earlier batches of a query
    │   ├── TableSchemaRefused     a column can't change to the type in the new schema
    │   ├── BatchRefused           a stream refused a batch
    │   ├── StreamDiffers          a stream holds other data than expected
    │   ├── ArchiveError           an archive can't be written or read
    │   │   ├── NotAnArchive       the folder does not hold an archive
    │   │   ├── ArchiveDamaged     a file of an archive is missing or damaged
    │   │   ├── ArchiveGap         messages are missing after the end of an archive
    │   │   └── ArchiveOvertaken   another query archived the same messages first
    │   ├── RestoreRefused         streams could not be restored
    │   ├── SnapshotRefused        a snapshot of a stream can't be taken
    │   └── PipelineError          a pipeline can't run, or has failed
    │       ├── NoSpark            PySpark is not installed
    │       ├── BadPipeline        a pipeline file has errors
    │       ├── CheckpointTaken    another process uses the checkpoint
    │       ├── NotACheckpoint     the folder holds no checkpoint of a pipeline
    │       ├── CheckpointUnreadable   a file of a checkpoint is not in Spark's format
    │       ├── CheckpointUnwritable   the folder of a checkpoint is not writable
    │       └── MetricsUnwritable  the metrics file can't be written
    └── ClientError                a request to a stream server failed
        ├── ClientClosed           the client was closed; nothing was sent
        ├── Unreachable            no connection could be made; nothing was sent
        ├── ConnectionLost         the connection broke before the response was complete
        ├── UnexpectedResponse     the response does not follow the protocol
        │   └── BadData            the data of a stream does not match its content type
        ├── ProducerError          the producer can't accept or send an item
        │   ├── ProducerClosed     it was closed, or has failed permanently
        │   ├── QueueFull          its queue is full, and it is configured not to wait
        │   └── Undelivered        the item was not sent because an earlier one failed
        ├── LeaseLost              the worker lost its lease
        └── RequestRefused         the server refused, for a cause without a class of its own
            ├── StreamNotFound     404: there is no stream at the URL
            ├── StreamGone         410: the stream was deleted; only its forks can be read
            ├── OffsetGone         410: the offset belongs to a stream or data that is gone
            │   └── StreamRecreated   the stream was deleted and created again
            ├── StreamExists       409: a stream with another configuration exists
            ├── StreamClosed       409: the stream accepts no more appends
            ├── ContentTypeMismatch   409: the stream has another content type
            ├── StreamSeqRegression   409: Stream-Seq did not increase
            ├── ProducerFenced     403: a newer session of this producer has taken over
            ├── ProducerGap        409: the producer skipped a sequence number
            ├── ProducerReused     200, 204: another writer used this producer's numbers
            ├── BodyTooLarge       413: the body exceeds the server's limit
            ├── Overloaded         429, 503: the server asks for a later retry
            └── ServerFailed       5xx: the server failed to process the request

On the server a refusal of the protocol (a missing stream, a fenced producer, a closed stream) is
a value and not an error: see `headwater.protocol.refusals`. The client raises it as an error.
"""

from headwater.errors.base import *
from headwater.errors.client import *
from headwater.errors.runs import *
from headwater.errors.spark import *
from headwater.errors.state import *
from headwater.errors.store import *

for _error in tuple(globals().values()):
    if isinstance(_error, type) and issubclass(_error, HeadwaterError):
        # Tracebacks and pickles show the name that users import.
        _error.__module__ = __name__
