"""How much is done of what Spark runs for a job, by its tasks."""

from typing import Any

from pyspark.sql import SparkSession


def group_tasks(spark: SparkSession, group: str) -> None:
    """Have what this thread runs from now on belong to a group."""
    context = _context(spark)
    if context is not None:
        context.setJobGroup(group, group)


def part_done(spark: SparkSession, group: str) -> float | None:
    """Give the part of a group's tasks that are done; None where none run, or can't be seen."""
    context = _context(spark)
    if context is None:
        return None
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(each) for each in tracker.getJobIdsForGroup(group)]
    running = [job for job in jobs if job is not None and job.status == "RUNNING"]
    found = [tracker.getStageInfo(stage) for job in running for stage in job.stageIds]
    stages = [stage for stage in found if stage is not None]
    tasks = sum(stage.numTasks for stage in stages)
    return sum(stage.numCompletedTasks for stage in stages) / tasks if tasks else None


def _context(spark: SparkSession) -> Any:
    context: Any = getattr(spark, "_sc", None)  # a Connect client has none
    return None if getattr(context, "_jsc", None) is None else context  # nor has one that has ended
