"""The disk engine: a journal with group commit, segments, and a catalog.

    append ─▶ journal (one file for all streams, one sync for all who wait) ─▶ published
                 │ checkpoint
                 ▼
              segment (immutable, grouped by stream) + catalog (SQLite: who is where)

`store.py` wires the parts. Each file format has its own module: `records`, `journal`, `segments`,
`catalog`; docs/storage.md describes them.
"""
