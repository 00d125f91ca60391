"""What a user sends with every request is sent by the driver and by every task."""

from pathlib import Path

from headwater.client import Client
from tests.spark.conftest import Reads
from tests.spark.patience import PATIENCE
from tests.support.proxy import Proxy
from tests.support.server import ServerProcess


def test_headers_and_token_go_with_every_request(
    reads: Reads, server: ServerProcess, client: Client, room: str, tmp_path: Path
) -> None:
    client.stream(f"{room}/in").create(data=b'[{"n": 1}, {"n": 2}]')
    given = {"token": "secret", "headers": '{"X-Tenant": "blue"}'}
    with Proxy(server.url) as proxy:
        reads.url = proxy.url
        assert reads.batch(f"{room}/*", "n long", **given).count() == 2
        query = (
            reads.stream(f"{room}/in", "n long", **given)
            .writeStream.format("headwater")
            .options(url=proxy.url, stream=f"{room}/out", **given)
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE)
        requests = [request.lower() for request in proxy.requests]
    assert list(client.stream(f"{room}/out").read().items()) == [{"n": 1}, {"n": 2}]
    path = f"{room}/in".encode()
    assert any(request.startswith(b"get") and path in request for request in requests)
    assert any(request.startswith(b"post") for request in requests)
    without = [
        request
        for request in requests
        if b"authorization: bearer secret" not in request or b"x-tenant: blue" not in request
    ]
    assert without == []
