"""The jobs of the pipeline: functions of a session and a source that run on any Spark."""
