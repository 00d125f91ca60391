"""Where Java and its Python workers write: to a file, not between the lines that a person reads."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from headwater.errors import CheckpointUnwritable

if TYPE_CHECKING:
    from headwater.spark.pipelines import Pipeline

NAME: Final = "headwater-spark.log"
_STDERR: Final = 2


def log_of(pipelines: "Sequence[Pipeline]") -> Path:
    """Choose the file: in the first checkpoint that is on this machine, else a temporary one."""
    from headwater.spark.pipelines.checkpoints import local_folder

    for pipeline in pipelines:
        folder = local_folder(pipeline.checkpoint) if pipeline.has_checkpoint else None
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CheckpointUnwritable(str(folder), error.strerror or str(error)) from None
            return folder / NAME
    return Path(tempfile.gettempdir()) / f"{os.getpid()}-{NAME}"


def forget(log: Path) -> None:
    """Remove the log of what went well, unless it is a checkpoint's, which has one of each run."""
    if log.name != NAME:
        log.unlink(missing_ok=True)


@contextmanager
def java_writes_to(log: Path) -> Iterator[None]:
    """Start Java in this block: what it inherits as its standard error is the file."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it ships without types
    from pyspark.errors import PySparkException

    from headwater.spark.pipelines.failures import reason_of

    try:
        file = log.open("wb")
    except OSError as error:
        raise CheckpointUnwritable(str(log.parent), error.strerror or str(error)) from None
    kept = os.dup(_STDERR)
    with file:
        os.dup2(file.fileno(), _STDERR)
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise click.ClickException(f"Spark did not start: {reason_of(error)} See {log}") from None
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
