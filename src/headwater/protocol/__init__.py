"""What the protocol says: pure rules over frozen values, with no I/O, no clock and no asyncio."""
