"""The disk engine: a journal with group commit, segments, and a catalog.

    append ─▶ journal (one file for all streams, one sync per batch) ─▶ visible to readers
                 │ checkpoint
                 ▼
              segment (immutable, grouped by stream) + catalog (SQLite: streams and their extents)

`store.py` wires the parts. Each file format has its own module: `records`, `journal`, `segments`,
`catalog`; docs/storage.md describes them.
"""
