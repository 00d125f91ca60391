"""A checkpoint in pieces: a head, and pages of steps of which only the changed ones are written.

A snapshot grows with its run, and a projector keeps one after every few events. Written whole, a
run of n steps would cost n²; in pages it costs what has changed. Steps stay in the order in which
they were first heard of, and most of them are over: they stand in pages that never change again.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
from msgspec import structs

from headwater.errors import RunLogDamaged
from headwater.runs.store import Checkpoint, checkpoint_from_json, checkpoint_to_json
from headwater.runs.values import RunSnapshot, StepSnapshot

PAGE_STEPS: Final = 32


class Pieces(NamedTuple):
    """What is written of a checkpoint."""

    head: bytes
    """The checkpoint, its snapshot without steps."""
    steps: int
    """How many steps its snapshot has."""
    pages: dict[int, bytes]
    """By their number, those that changed."""


def split(checkpoint: Checkpoint, before: RunSnapshot | None = None) -> Pieces:
    """Take a checkpoint apart, leaving out the pages that a snapshot written `before` has too."""
    steps = checkpoint.snapshot.steps
    known: tuple[StepSnapshot, ...] = () if before is None else before.steps
    pages = {}
    for number, first in enumerate(range(0, len(steps), PAGE_STEPS)):
        page = steps[first : first + PAGE_STEPS]
        # A step that did not change is the very same value, which makes this cheap.
        if page != known[first : first + PAGE_STEPS]:
            pages[number] = msgspec.json.encode(page)
    bare = structs.replace(checkpoint.snapshot, steps=())
    head = checkpoint_to_json(structs.replace(checkpoint, snapshot=bare))
    return Pieces(head, len(steps), pages)


def join(run_id: str, head: bytes | str, steps: int, pages: Iterable[bytes | str]) -> Checkpoint:
    """Put a checkpoint together from its pages in their order; raises `RunLogDamaged`."""
    checkpoint = checkpoint_from_json(run_id, head)
    if checkpoint.snapshot.steps:  # written whole, by an earlier version of ours
        return checkpoint
    try:
        found = [
            step
            for page in pages
            for step in msgspec.json.decode(page, type=tuple[StepSnapshot, ...])
        ]
    except msgspec.MsgspecError as error:
        raise RunLogDamaged(run_id, "the checkpoint's steps", str(error)) from error
    if len(found) < steps:
        raise RunLogDamaged(run_id, "the checkpoint", f"{steps - len(found)} of its steps are gone")
    snapshot = structs.replace(checkpoint.snapshot, steps=tuple(found[:steps]))
    return structs.replace(checkpoint, snapshot=snapshot)
