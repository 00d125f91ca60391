"""What the pipeline on Spark raises."""

from collections.abc import Sequence

from headwater.errors.base import HeadwaterError


class SparkError(HeadwaterError):
    """The Spark source or sink can't do what it was asked to."""


class NoJava(SparkError):
    """There is no Java that Spark can run on."""

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


class TableForeign(SparkError):
    """A table that something else has made is to be written to."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"The table in {folder} was not made by Headwater, which reads such a table, and does "
            "not write to it. Write to another folder."
        )
        self.folder = folder


class TableUnreadable(SparkError):
    """A table that something else has made is of a kind that is not read."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(f"The table in {folder} can't be read: {reason}")
        self.folder = folder


class TableAhead(SparkError):
    """A table holds later batches of a query than the one that it is given."""

    def __init__(self, folder: str, committed: int, batch: int) -> None:
        super().__init__(
            f"The table {folder} holds batch {committed} of this query, and is given batch "
            f"{batch}: the checkpoint is an older copy, or another driver runs on it. Nothing of "
            "the batch was written. Go on with the newest checkpoint, or begin anew with another "
            "checkpoint and another folder."
        )
        self.folder = folder
        self.committed = committed
        self.batch = batch


class TableLost(SparkError):
    """A table lacks what a query has written before."""

    def __init__(self, folder: str, batch: int) -> None:
        super().__init__(
            f"The table in {folder} does not hold what this query has written before batch "
            f"{batch}: it is gone, or an older copy, or the query was begun with another folder or "
            "another format. Nothing of the batch was written to it. Bring it back, or set that "
            "back, or begin anew with another checkpoint and another folder."
        )
        self.folder = folder
        self.batch = batch


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
            "pip install 'headwater[spark,jdk]' (without jdk where there is a Java, 17 or newer)"
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


class NotACheckpoint(PipelineError):
    """No pipeline has run on the folder."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"No pipeline has run on '{folder}'. Name the folder that its --checkpoint was, or "
            "--state of publish; without them it is that of --to with .checkpoint behind, or of "
            "--table with .published."
        )
        self.folder = folder


class CheckpointUnreadable(PipelineError):
    """A file of a checkpoint is not what Spark writes."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(
            f"'{file}' can't be read as a part of a checkpoint: {reason}. Restore it from a copy, "
            "or begin anew with another checkpoint."
        )
        self.file = file


class CheckpointUnwritable(PipelineError):
    """A checkpoint's folder takes no files."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(
            f"The checkpoint '{folder}' can't be written: {reason}. Let this user write there, or "
            "choose another."
        )
        self.folder = folder


class MetricsUnwritable(PipelineError):
    """The file for figures can't be written."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"Figures can't be written to '{file}': {reason}. Choose another file.")
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


class ArchiveOvertaken(ArchiveError):
    """Another query has archived meanwhile what this one was about to add."""

    def __init__(self, stream: str, reached: str) -> None:
        super().__init__(
            f"Another query has archived '{stream}' up to offset {reached} meanwhile. Nothing is "
            "missing, and nothing of this batch was added: have one query archive a stream at a "
            "time, and start this one again to go on behind that offset."
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
