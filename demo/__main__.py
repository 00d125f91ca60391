"""Start a server, feed it, run three pipelines on Spark, and show the tables.

`python -m demo [FOLDER]`; everything it makes is in the folder, a new one below the temporary
folder where none is named.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from demo.feeding import feed
from demo.showing import show_tables
from headwater.errors import NoJava
from headwater.spark.java import find_java

HERE: Final = Path(__file__).parent
FILES: Final = ("shop.toml", "runs.toml", "alerts.toml")
say: Final = partial(print, flush=True)  # also where it is no terminal
_READY: Final = re.compile(r"Headwater listens on (http://\S+)")


def main(folder: Path) -> int:
    """Show everything; gives the exit code."""
    began = time.monotonic()
    try:
        find_java()  # said now, not after everything else is done
    except NoJava as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(HERE / name, folder / name)
    with server(folder) as url:
        say(f"1. A server runs at {url}, its store is {folder}/store.")
        changes, events = feed(url)
        say(f"2. Fed {changes:,} changes of customers and orders, {events:,} events of runs.")
        say(f"3. Spark runs {', '.join(FILES)}, which takes a moment to start:")
        code = run_pipelines(folder, url)
        if code:
            return code
        say("4. The tables and the stream that were made:\n")
        show_tables(folder / "tables", url)
    say(where_to_look(folder))
    say(f"The demonstration took {time.monotonic() - began:.0f} seconds.")
    return 0


def run_pipelines(folder: Path, url: str) -> int:
    """Run the three pipelines to the end of what there is."""
    command = [sys.executable, "-m", "headwater", "pipeline", "run", "--once", *FILES]
    environment = {**os.environ, "HEADWATER_URL": url}
    process = subprocess.Popen(command, cwd=folder, env=environment)
    try:
        return process.wait()
    except KeyboardInterrupt:
        # The terminal sent it Ctrl-C as well: it stops after its batch.
        return process.wait()
    except BaseException:
        end(process)  # SIGTERM came to us alone
        raise


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process that was started here, with patience."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Run a server on a free port for a block; gives its URL."""
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "headwater", "serve"),
                *("--port", "0", "--store", str(folder / "store")),
            ],
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for us: the server stops last
        )
    try:
        yield _url(folder / "server.log", process)
    finally:
        end(process)


def _url(log: Path, process: "subprocess.Popen[bytes]") -> str:
    until = time.monotonic() + 30
    while time.monotonic() < until and process.poll() is None:
        if ready := _READY.search(log.read_text()):
            return ready[1]
        time.sleep(0.05)
    raise SystemExit(f"Error: the server did not start; see {log}:\n{log.read_text()[-1000:]}")


def where_to_look(folder: Path) -> str:
    """Say what is where, with commands that can be pasted."""
    headwater = Path(sys.executable).with_name("headwater")
    return f"""
Everything is in {folder}:
  tables/      open tables (Delta): tables/shop/customer, tables/shop/customer_history, ...
  *.toml       the pipelines; checkpoints/ is how far they are
  store/       the server's data

Go on with it in two terminals:
  {headwater} serve --store {folder}/store
  cd {folder} && {headwater} pipeline run {" ".join(FILES)}
and then, for example:
  {headwater} append shop/north '{{"type": "customer", "key": "you", "value": {{"name": "You"}}, \
"headers": {{"operation": "insert"}}}}'
  {headwater} read alerts/large-orders --follow
  cd {folder} && {headwater} pipeline status {" ".join(FILES)}
Pages to read: docs/pipelines.md, docs/spark.md
"""


if __name__ == "__main__":
    # Whoever ends us with SIGTERM wants the server to end as well.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="headwater-"))
    try:
        sys.exit(main(chosen.absolute()))
    except KeyboardInterrupt:
        print(f"\nStopped. What was made is in {chosen}.", file=sys.stderr)
        sys.exit(130)
