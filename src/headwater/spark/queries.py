"""Which query this is: what makes a replayed batch known to whoever has it already."""

import msgspec

from headwater.spark.tables.files import file_system


def query_id(checkpoint: str) -> str:
    """Read the id of the query that a checkpoint belongs to; Spark writes it before any batch."""
    system, root = file_system(checkpoint)
    with system.open_input_stream(f"{root}/metadata") as file:
        return str(msgspec.json.decode(file.read())["id"])
