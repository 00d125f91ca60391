"""Pipelines: streams through transforms to streams and tables, described in one small file.

The rules do no I/O: `values` is what a pipeline is, `rules` what contradicts itself, `progress` how
far it is. `file` reads it, `checking` and `analysing` find what is wrong before it runs, `building`
and `targets` make Spark's query of it, `sessions`, `runs` and `running` run it, `status` and
`metrics` tell how it goes.
"""

from headwater.spark.pipelines.analysing import with_spark
from headwater.spark.pipelines.checking import before_spark
from headwater.spark.pipelines.file import load, read_document, read_file, read_partly
from headwater.spark.pipelines.metrics import Meter
from headwater.spark.pipelines.problems import Problem
from headwater.spark.pipelines.running import Runner, running
from headwater.spark.pipelines.runs import Outcome
from headwater.spark.pipelines.sessions import open_session
from headwater.spark.pipelines.status import Status, status_of, status_of_checkpoint
from headwater.spark.pipelines.values import Pipeline, Source, Transform

__all__ = [
    "Meter",
    "Outcome",
    "Pipeline",
    "Problem",
    "Runner",
    "Source",
    "Status",
    "Transform",
    "before_spark",
    "load",
    "open_session",
    "read_document",
    "read_file",
    "read_partly",
    "running",
    "status_of",
    "status_of_checkpoint",
    "with_spark",
]
