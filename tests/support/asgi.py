"""A real uvicorn process with one of our ASGI applications, for tests."""

import re
import sys
from typing import Final

from tests.conformance.suite import ROOT
from tests.support.server import LoggedProcess

_READY: Final = re.compile(r"running on (http://\S+)")


class AsgiProcess(LoggedProcess):
    """`module:app` under uvicorn on a free port."""

    def __init__(self, app: str) -> None:
        uvicorn = [sys.executable, "-m", "uvicorn", app, "--port", "0", "--no-access-log"]
        super().__init__("uvicorn", uvicorn, _READY, folder=ROOT)
