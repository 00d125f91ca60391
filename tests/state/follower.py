"""A process that follows a stream into a file until it is killed: follower.py URL STREAM FILE."""

import sys

from headwater.client import Client
from headwater.state import Hooks, StreamDB

with Client(sys.argv[1]) as client:
    hooks = Hooks(on_batch=lambda offset: print(offset, flush=True))  # noqa: T201 - told to the test
    with StreamDB(client.stream(sys.argv[2]), backend=sys.argv[3], hooks=hooks) as db:
        db.preload()
        sys.stdin.read()  # which never ends: the process is killed, or its test is
