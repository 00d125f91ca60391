"""What the pipeline does: each job is one function."""
