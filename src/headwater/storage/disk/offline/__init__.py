"""Commands over a data directory: check, repair, backup and info."""
