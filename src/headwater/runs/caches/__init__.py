"""Caches of snapshots that several processes share, one file each."""
