"""ASGI applications that the tests run under uvicorn."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from headwater.server import Settings, asgi_app
from tests.conformance.suite import LONG_POLL_SECONDS

plain = asgi_app(
    settings=Settings(
        store="memory", long_poll_timeout=LONG_POLL_SECONDS, allow_local_webhooks=True
    )
)

streams = asgi_app(settings=Settings(store="memory", root="/", max_body_bytes=1000))


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Open and close the streams with the application that they are part of."""
    await streams.startup()
    yield
    await streams.shutdown()


mounted = FastAPI(lifespan=lifespan)


@mounted.get("/hello")
def hello() -> dict[str, str]:
    """Answer beside the streams."""
    return {"hello": "world"}


mounted.mount("/streams", streams)
