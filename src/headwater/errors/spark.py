"""Errors of the pipeline on Spark."""

from collections.abc import Sequence as _Sequence  # not exported by `import *`

from headwater.errors.base import HeadwaterError


class SparkError(HeadwaterError):
    """The Spark source, the sink or a job can't perform an operation."""


class NoJava(SparkError):
    """No suitable Java was found for Spark."""

    def __init__(self, found: str, least: int) -> None:
        super().__init__(
            f"Spark needs Java {least} or newer, and {found}. Install one (pip install "
            f"'headwater[jdk]'; on Debian and Ubuntu apt-get install openjdk-{least}-jre-headless; "
            f"on macOS brew install openjdk@{least}), or set JAVA_HOME to one."
        )


class BadOption(SparkError):
    """An option of the source or the sink can't be used."""

    def __init__(self, name: str, reason: str) -> None:
        end = "" if reason.endswith("?") else "."
        super().__init__(f"option '{name}' can't be used: {reason}{end}")
        self.name = name
        self.reason = reason


class CorruptMessage(SparkError):
    """A message can't be read in the chosen mode."""

    def __init__(self, stream: str, offset: str, mode: str, reason: str) -> None:
        super().__init__(
            f"The message of '{stream}' that ends at offset {offset} can't be read in mode "
            f"'{mode}': {reason}. Add a '_corrupt' column to the schema or set the option "
            "onCorrupt=column to store such messages, or read them in mode 'raw'."
        )
        self.stream = stream
        self.offset = offset


class StreamLost(SparkError):
    """A stream was deleted or created again since the query last read it."""

    def __init__(self, stream: str, offset: str, what: str) -> None:
        super().__init__(
            f"'{stream}' {what} since it was read up to offset {offset}: its data after that "
            "offset is gone. To continue without it, set the option failOnDataLoss to false."
        )
        self.stream = stream
        self.offset = offset


class BadRow(SparkError):
    """A row can't be written to a stream."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"A row can't be written: {reason}. Nothing of this batch was appended.")


class TableChanged(SparkError):
    """Another writer changed a table while a batch was written to it."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"The table {folder} was changed by another writer while a batch was being "
            "written, and nothing of the batch is in it. Let one query at a time write to a table, "
            "and restart it."
        )
        self.folder = folder


class TableSchemaRefused(SparkError):
    """A column of a table can't change to the type in the new schema."""

    def __init__(self, column: str, is_now: str, wanted: str) -> None:
        super().__init__(
            f"The column '{column}' is {is_now} in the table, and can't be changed to "
            f"{wanted}. Give the new column another name, or write to another folder from the "
            "beginning."
        )
        self.column = column


class TableTaken(SparkError):
    """A table was written by another query."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"The table in {folder} was written by a query with another checkpoint. Continue with "
            "that checkpoint, or write to another folder."
        )
        self.folder = folder


class TableForeign(SparkError):
    """A table that was not created by Headwater can't be written to."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"The table in {folder} was not created by Headwater, which reads such tables but does "
            "not write to them. Write to another folder."
        )
        self.folder = folder


class TableUnreadable(SparkError):
    """A table that was not created by Headwater can't be read."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(f"The table in {folder} can't be read: {reason}")
        self.folder = folder


class TableAhead(SparkError):
    """A table already holds later batches of a query."""

    def __init__(self, folder: str, committed: int, batch: int) -> None:
        super().__init__(
            f"The table {folder} holds batch {committed} of this query, so batch {batch} can't be "
            "written: the checkpoint is an older copy, or another driver runs on it. Nothing of "
            "the batch was written. Continue with the newest checkpoint, or start over with "
            "another checkpoint and another folder."
        )
        self.folder = folder
        self.committed = committed
        self.batch = batch


class TableLost(SparkError):
    """A table lacks earlier batches of a query."""

    def __init__(self, folder: str, batch: int) -> None:
        super().__init__(
            f"The table in {folder} does not hold what this query wrote before batch {batch}: it "
            "was deleted or replaced by an older copy, or the query was started with another "
            "folder or another format. Nothing of the batch was written. Restore the table, or "
            "the former options, or start over with another checkpoint and another folder."
        )
        self.folder = folder
        self.batch = batch


class BatchRefused(SparkError):
    """A stream refused a batch."""

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(f"'{stream}' refused the batch: {reason}")
        self.stream = stream


class PipelineError(SparkError):
    """A pipeline can't run, or has failed."""


class NoSpark(PipelineError):
    """PySpark is not installed, or is incomplete."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"Pipelines need Spark, and the package {missing} is not installed. Install it with: "
            "pip install 'headwater[spark,jdk]' (without jdk where there is a Java, 17 or newer)"
        )
        self.missing = missing


class BadPipeline(PipelineError):
    """A pipeline file has errors; `problems` lists all of them."""

    def __init__(self, name: str, problems: _Sequence[object]) -> None:
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"The pipeline {name} can't run:{lines}")
        self.name = name
        self.problems = problems


class CheckpointTaken(PipelineError):
    """Another process uses the checkpoint."""

    def __init__(self, folder: str, holder: str) -> None:
        who = f"process {holder}" if holder else "another process"
        super().__init__(
            f"The checkpoint '{folder}' is in use by {who}: only one process may run a "
            "pipeline. Stop that process, or give this pipeline another name or checkpoint."
        )
        self.folder = folder
        self.holder = holder


class NotACheckpoint(PipelineError):
    """The folder holds no checkpoint of a pipeline."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"'{folder}' holds no checkpoint of a pipeline. Name the folder given as --checkpoint, "
            "or as --state of publish; by default it is the folder of --to with .checkpoint "
            "appended, or that of --table with .published."
        )
        self.folder = folder


class CheckpointUnreadable(PipelineError):
    """A file of a checkpoint is not in Spark's format."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(
            f"'{file}' can't be read as part of a checkpoint: {reason}. Restore it from a copy, "
            "or start over with another checkpoint."
        )
        self.file = file


class CheckpointUnwritable(PipelineError):
    """The folder of a checkpoint is not writable."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(
            f"The checkpoint '{folder}' can't be written: {reason}. Give this user write "
            "permission, or choose another folder."
        )
        self.folder = folder


class MetricsUnwritable(PipelineError):
    """The metrics file can't be written."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"Metrics can't be written to '{file}': {reason}. Choose another file.")
        self.file = file


class StreamDiffers(SparkError):
    """A stream holds other data than expected."""

    def __init__(self, stream: str, offset: str, reason: str) -> None:
        super().__init__(
            f"'{stream}' does not hold the expected data after offset {offset}: {reason}. "
            "Nothing more was appended. Delete the stream, or choose another path."
        )
        self.stream = stream
        self.offset = offset


class ArchiveError(SparkError):
    """An archive can't be written or read."""


class NotAnArchive(ArchiveError):
    """The folder does not hold an archive."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(
            f"'{folder}' is not an archive: {reason}. Name the folder that the archive job wrote."
        )
        self.folder = folder


class ArchiveDamaged(ArchiveError):
    """A file of an archive is missing, or does not match the archive's log."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(
            f"The archive's file '{file}' can't be used: {reason}. Restore it from a copy; "
            "what precedes it can be restored with an 'until'."
        )
        self.file = file


class ArchiveGap(ArchiveError):
    """Messages are missing between the end of an archive and the next available one."""

    def __init__(self, stream: str, reached: str, next_offset: str, advice: str) -> None:
        super().__init__(
            f"The archive of '{stream}' reaches offset {reached}, and the next available message "
            f"ends at {next_offset}: the messages in between are missing. {advice}"
        )
        self.stream = stream
        self.reached = reached


class ArchiveOvertaken(ArchiveError):
    """Another query archived the same messages first."""

    def __init__(self, stream: str, reached: str) -> None:
        super().__init__(
            f"Another query has archived '{stream}' up to offset {reached}. Nothing is missing, "
            "and nothing of this batch was added: let one query at a time archive a stream, and "
            "restart this one to continue after that offset."
        )
        self.stream = stream
        self.reached = reached


class RestoreRefused(SparkError):
    """Streams could not be restored."""

    def __init__(self, reasons: dict[str, str]) -> None:
        listed = " ".join(f"'{path}': {reason}" for path, reason in sorted(reasons.items()))
        super().__init__(f"{len(reasons)} of the streams could not be restored. {listed}")
        self.reasons = reasons


class SnapshotRefused(SparkError):
    """A snapshot of a stream can't be taken."""

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(f"No snapshot of '{stream}' was taken: {reason}")
        self.stream = stream
