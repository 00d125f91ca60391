"""Storage of streams: one interface, and a module or package for each backend."""
