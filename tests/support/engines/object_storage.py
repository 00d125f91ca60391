"""Object storage that speaks S3, as SeaweedFS: the server from a wheel."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from tests.support.engines.process import free_port, running

_KEY, _SECRET = "tests", "tests-secret"
_REGION = "us-east-1"
_buckets = count()


class ObjectStorage:
    """A server."""

    def __init__(self, port: int) -> None:
        self._host = f"127.0.0.1:{port}"

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process has to be told that is to use it."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self._host}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": _REGION,
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
        }

    def fresh_bucket(self) -> str:
        """Make a bucket that nothing has been in."""
        name = f"lake-{next(_buckets)}"
        self._system().create_dir(name)
        return name

    def is_ready(self) -> bool:
        """Tell whether it takes and gives objects."""
        try:
            system = self._system()
            system.create_dir("ready")
            with system.open_output_stream("ready/yes") as file:
                file.write(b"yes")
        except (OSError, pa.ArrowException):
            return False
        return True

    def _system(self) -> fs.S3FileSystem:
        return fs.S3FileSystem(
            access_key=_KEY,
            secret_key=_SECRET,
            region=_REGION,
            scheme="http",
            endpoint_override=self._host,
            allow_bucket_creation=True,
            connect_timeout=1,
            request_timeout=2,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
        )


@contextmanager
def start_object_storage(folder: Path) -> Iterator[ObjectStorage]:
    """Start a server that keeps its objects in a folder."""
    program = Path(sys.executable).with_name("weed")
    if not program.exists():
        pytest.fail("SeaweedFS is missing: run 'make test', which installs it.")
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}],
        "actions": ["Admin"],
    }
    known = folder / "identities.json"
    known.write_text(json.dumps({"identities": [identity]}))
    port = free_port()
    ports = [
        f"-{part}.port{kind}={free_port()}"
        for part in ("master", "volume", "filer")
        for kind in ("", ".grpc")
    ]
    command = [
        *(str(program), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}", *ports),
        *(
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=64",
            "-volume.max=0",
            "-volume.preStopSeconds=0",
        ),
        *("-s3", f"-s3.port={port}", f"-s3.port.grpc={free_port()}", f"-s3.config={known}"),
        *("-s3.port.iceberg=0", "-s3.port.lance=0"),  # else at ports that another may have
    ]
    storage = ObjectStorage(port)
    with running("SeaweedFS", command, folder / "weed.log", storage.is_ready) as process:
        yield storage
        process.kill()  # it would take ten seconds to say goodbye
