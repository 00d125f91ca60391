"""The rules of the protocol: pure functions over frozen values, without I/O, clock or asyncio."""
