"""Archives: streams as Parquet files behind a log.

`contents` is what an archive holds, and the rule by which it grows: no I/O. `log` keeps it in a
folder, `files` writes and reads the Parquet files. Jobs use them: `headwater.spark.jobs.archive`
and `.restore`.
"""

from headwater.spark.archives.contents import ArchivedFile, Contents, Entry, Incarnation, Seen
from headwater.spark.archives.log import commit, load

__all__ = ["ArchivedFile", "Contents", "Entry", "Incarnation", "Seen", "commit", "load"]
