"""Documents: small values by key that are kept beside the streams, such as subscriptions.

What the catalog does not have yet lies in memory over it, as streams do: a None there means that
the document is gone.
"""

from collections.abc import Mapping

from headwater.storage.disk.catalog import Catalog


class Documents:
    """The durable documents: those of the catalog, and what was kept since."""

    __slots__ = ("_catalog", "_saving", "unsaved")

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.unsaved: dict[str, bytes | None] = {}
        """Changes that the next checkpoint has to save."""
        self._saving: dict[str, bytes | None] = {}

    def kept(self, changes: Mapping[str, bytes | None]) -> None:
        """Changes are durable."""
        self.unsaved.update(changes)

    def under(self, prefix: str) -> dict[str, bytes]:
        """Give the documents whose keys begin with a prefix."""
        found: dict[str, bytes | None] = dict(self._catalog.documents(prefix))
        for layer in (self._saving, self.unsaved):
            found.update((key, value) for key, value in layer.items() if key.startswith(prefix))
        return {key: value for key, value in sorted(found.items()) if value is not None}

    def take(self) -> list[tuple[str, bytes | None]]:
        """Hand over what has to be saved; it stays visible until that has succeeded or failed."""
        self._saving, self.unsaved = self.unsaved, {}
        return list(self._saving.items())

    def succeeded(self) -> None:
        """The catalog has what was taken."""
        self._saving = {}

    def failed(self) -> None:
        """Take everything back: the next checkpoint has to save it."""
        self.unsaved = {**self._saving, **self.unsaved}
        self._saving = {}


class KeepOperation:
    """Documents that were handed over and wait to be durable."""

    __slots__ = ("_changes", "_documents")

    def __init__(self, documents: Documents, changes: Mapping[str, bytes | None]) -> None:
        self._documents = documents
        self._changes = dict(changes)

    def publish(self) -> None:
        self._documents.kept(self._changes)

    def undo(self) -> None:
        """Nothing was shown, so there is nothing to take back."""
