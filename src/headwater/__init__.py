"""Headwater turns HTTP into a durable log, and the log into tables."""

__version__ = "0.1.0"
