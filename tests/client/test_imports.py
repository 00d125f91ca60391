"""What importing the client loads: asyncio only where something asynchronous is used."""

import subprocess
import sys

import pytest

import headwater.client

_IS_LOADED = (
    "import sys, headwater.client as client; client.{name}; print('asyncio' in sys.modules)"
)


@pytest.mark.parametrize("name", ["Client", "Stream", "Worker", "AsyncClient", "AsyncWorker"])
def test_naming_a_client_does_not_import_asyncio(name: str) -> None:
    assert _run(_IS_LOADED.format(name=name)) == "False"


def test_a_synchronous_client_does_not_import_asyncio() -> None:
    assert _run(_IS_LOADED.format(name="Client().stream('a').read()")) == "False"


def test_the_producer_imports_asyncio_when_it_is_first_named() -> None:
    assert _run(_IS_LOADED.format(name="Producer")) == "True"


@pytest.mark.parametrize("name", headwater.client.__all__)
def test_everything_public_can_be_imported(name: str) -> None:
    assert getattr(headwater.client, name) is not None


def _run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
