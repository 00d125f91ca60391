"""Real engines for tests: each starts once a session, on loopback, and goes with it."""
