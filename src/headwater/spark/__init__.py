"""Streams as Spark tables: `spark.read`, `readStream`, `write` and `writeStream` in one format.

The rules do no I/O: `options` checks what the user chose, `ranges` shares out bytes and packs
partitions, `layout` finds the messages of a batch, `messages` says what is in them, `arrays` and
`columns` turn that into Arrow. `planning` asks the server, `batch_reader`,
`stream_reader` and `sink` are what Spark calls, and `source` is where it finds them.
"""

from headwater.spark.session import session
from headwater.spark.source import HeadwaterDataSource

__all__ = ["HeadwaterDataSource", "session"]
