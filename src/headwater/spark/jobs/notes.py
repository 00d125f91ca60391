"""What a job remembers from batch to batch: small documents beside the checkpoint of its query.

The document of a batch says what holds before it. So a batch that is replayed starts from what it
started from, whatever was written since.
"""

import re
from typing import Any, Final, Generic, TypeVar

import msgspec
from pyarrow import fs

from headwater.spark.tables.files import file_system, make_folder, write_document

T = TypeVar("T")

_NAME: Final = re.compile(r"(\d+)\.json")
_KEPT: Final = 3


class Notes(Generic[T]):
    """Documents of one kind, in a folder that only this job writes to."""

    def __init__(self, folder: str, kind: type[T]) -> None:
        self._folder = folder
        self._kind = kind

    def before(self, batch: int) -> T | None:
        """Give what holds before a batch: the document of the last that had one."""
        system, root = file_system(self._folder)
        numbers = [number for number in _numbers(system, root) if number <= batch]
        if not numbers:
            return None
        with system.open_input_stream(_path(root, max(numbers))) as file:
            document: Any = file.read()
        return msgspec.json.decode(document, type=self._kind)

    def write(self, batch: int, document: T) -> None:
        """Write what holds before a batch; a reader sees all of it or nothing."""
        system, root = file_system(self._folder)
        make_folder(system, root)
        write_document(system, _path(root, batch), msgspec.json.encode(document))
        for number in sorted(_numbers(system, root))[:-_KEPT]:
            system.delete_file(_path(root, number))


def _numbers(system: fs.FileSystem, root: str) -> list[int]:
    found = system.get_file_info(fs.FileSelector(root, allow_not_found=True))
    names = [_NAME.fullmatch(each.base_name) for each in found]
    return [int(name[1]) for name in names if name is not None]


def _path(root: str, batch: int) -> str:
    return f"{root}/{batch:012}.json"
