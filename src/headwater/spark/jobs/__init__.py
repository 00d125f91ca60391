"""The jobs of the pipeline, as functions."""
