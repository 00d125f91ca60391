"""State over streams: change events, materialised state, schemas, a live local database."""
