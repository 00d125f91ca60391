"""After a restart: is everything there that was acknowledged, and nothing that never was?"""

import random

from tests.crash.ledger import Ledger, Record, Step, stored
from tests.support.wire import Wire


def check(ledger: Ledger, port: int, choose: random.Random) -> list[str]:
    """Compare the server with what the clients know; raises `Lost` where it dies meanwhile."""
    wrong = list(ledger.wrong)
    with Wire(port) as wire:
        for record in ledger.records():
            wrong += _check_one(record, wire, choose)
            if record.found_gone >= 3:
                ledger.drop(record)
    return wrong


def _check_one(record: Record, wire: Wire, choose: random.Random) -> list[str]:
    head = wire.ask_stream("HEAD", record.path)
    if head.status in {404, 410}:
        if record.deleted is Step.NOT_ASKED and record.created is Step.DONE:
            return [f"{record.path}: is gone ({head.status}), but was never deleted"]
        if record.deleted is Step.DONE and head.status == 410 and not record.has_forks:
            return [f"{record.path}: still exists, though it never had forks"]
        if record.deleted is Step.DONE and head.status == 404:
            record.found_gone += 1
        return []
    if head.status != 200:
        return [f"{record.path}: HEAD gave {head.status}"]
    if record.deleted is Step.DONE:
        return [f"{record.path}: is there, though it was deleted"]
    closed = head.headers.get("stream-closed") == "true"
    if record.closed is Step.DONE and not closed:
        return [f"{record.path}: is open, though it was closed"]
    if record.closed is Step.NOT_ASKED and closed:
        return [f"{record.path}: is closed, but was never closed by a client"]
    content = _read(record, wire, "-1")
    if isinstance(content, str):
        return [content]
    wrong = record.faults_of(content)
    known = [*record.seen_at.items(), *record.marks]
    for offset, position in choose.sample(known, min(2, len(known))):
        rest = _read(record, wire, offset)
        if rest != content[position:]:
            wrong.append(f"{record.path}: reading from {offset} is not reading from {position}")
    return wrong


def _read(record: Record, wire: Wire, offset: str) -> bytes | str:
    """Read to the tail; return a sentence if that fails."""
    content = b""
    while True:
        answer = wire.ask_stream("GET", f"{record.path}?offset={offset}")
        if answer.status != 200:
            return f"{record.path}: reading from {offset} gave {answer.status} {answer.body!r}"
        content += stored(record.kind, answer.body)
        if answer.headers.get("stream-up-to-date") == "true":
            return content
        offset = answer.next_offset
