#!/usr/bin/env python3
"""Our client as an adapter of the public client conformance suite.

It reads one JSON command per line on stdin and writes one JSON result per line on stdout.
"""

import base64
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import headwater
from headwater import errors
from headwater.client import (
    Client,
    Following,
    Live,
    Producer,
    ProducerClaim,
    Reading,
    Retry,
    Stream,
)

Command = dict[str, Any]
Result = dict[str, Any]

FEATURES = (
    "batching",
    "sse",
    "longPoll",
    "auto",
    "streaming",
    "dynamicHeaders",
    "retryOptions",
    "batchItems",
    "strictZeroValidation",
)
CODES: dict[type[errors.ClientError], str] = {
    errors.StreamNotFound: "NOT_FOUND",
    errors.StreamGone: "NOT_FOUND",
    errors.StreamClosed: "STREAM_CLOSED",
    errors.StreamSeqRegression: "SEQUENCE_CONFLICT",
    errors.ProducerGap: "SEQUENCE_CONFLICT",
    errors.BadData: "PARSE_ERROR",
    errors.UnexpectedResponse: "PARSE_ERROR",
    errors.Unreachable: "NETWORK_ERROR",
    errors.ConnectionLost: "NETWORK_ERROR",
}


OUR_WORDS = {
    "attempts": "maxRetries",
    "first_delay": "initialDelayMs",
    "max_delay": "maxDelayMs",
    "max_batch_bytes": "maxBatchBytes",
    "max_batch_items": "maxBatchItems",
}


def in_its_words(message: str) -> str:
    """Name options as the suite does."""
    for ours, theirs in OUR_WORDS.items():
        message = message.replace(ours, theirs)
    return message


def error_code(error: errors.ClientError) -> str:
    """Name an error as the suite does."""
    for kind, code in CODES.items():
        if isinstance(error, kind):
            return code
    if error.status == 409:
        return "CONFLICT"
    if error.status == 400 and "offset" in error.url:
        return "INVALID_OFFSET"
    return "UNEXPECTED_STATUS"


class Dynamic:
    """A header or parameter whose value is made for each request."""

    def __init__(self, command: Command) -> None:
        self._kind = command["valueType"]
        self._token = command.get("initialValue", "")
        self._count = 0
        self.last = ""

    def __call__(self) -> str:
        self._count += 1
        made = {
            "counter": str(self._count),
            "timestamp": str(time.time_ns() // 1_000_000),
            "token": self._token,
        }
        self.last = made[self._kind]
        return self.last


class Adapter:
    """Carries out commands, one after another."""

    def __init__(self) -> None:
        self._url = ""
        self._content_types: dict[str, str] = {}
        self._headers: dict[str, Dynamic] = {}
        self._params: dict[str, Dynamic] = {}
        self._producers: dict[tuple[str, str, int], Producer] = {}
        self._closings: dict[tuple[str, str, int], Result] = {}
        self._clients: list[Client] = []

    def handle(self, command: Command) -> Result:
        """Carry out a command; every failure is a result, too."""
        kind = command["type"]
        name = "do_" + kind.replace("-", "_")
        try:
            result: Result = getattr(self, name)(command)
        except errors.ClientError as error:
            code = error_code(error)
            if code == "CONFLICT" and "seq" in command:
                code = "SEQUENCE_CONFLICT"  # the public server gives no reason
            return failed(kind, code, error, error.status)
        except (ValueError, TypeError) as error:
            return failed(kind, "INVALID_ARGUMENT", in_its_words(str(error)))
        except AttributeError as error:
            code = "INTERNAL_ERROR" if hasattr(self, name) else "NOT_SUPPORTED"
            return failed(kind, code, error)
        return {"type": kind, "success": True, **result}

    def do_init(self, command: Command) -> Result:
        self._url = command["serverUrl"]
        self._content_types.clear()
        self.do_clear_dynamic(command)
        return {
            "clientName": "headwater",
            "clientVersion": headwater.__version__,
            "features": dict.fromkeys(FEATURES, True),
        }

    def do_create(self, command: Command) -> Result:
        content_type = command.get("contentType", "application/octet-stream")
        data = command.get("data")
        created = self._stream(command).create(
            content_type,
            ttl=command.get("ttlSeconds"),
            expires_at=command.get("expiresAt"),
            data=None if data is None else data.encode(),
            closed=command.get("closed", False),
        )
        self._content_types[command["path"]] = content_type
        return {"status": 201 if created.new else 200, "offset": created.next_offset}

    def do_connect(self, command: Command) -> Result:
        return self.do_head(command)

    def do_head(self, command: Command) -> Result:
        info = self._stream(command).head()
        self._content_types[command["path"]] = info.content_type
        result = {
            "status": 200,
            "offset": info.next_offset,
            "contentType": info.content_type,
            "streamClosed": info.closed,
            "ttlSeconds": info.ttl,
            "expiresAt": info.expires_at,
        }
        return {name: value for name, value in result.items() if value is not None}

    def do_append(self, command: Command) -> Result:
        data = command["data"].encode()
        if command.get("binary"):
            data = base64.b64decode(data)
        seq = command.get("seq")
        claim = None
        if "producerId" in command:
            claim = ProducerClaim(
                command["producerId"], command["producerEpoch"], command["producerSeq"]
            )
        # Made idempotent, it may be sent again after a server's failure.
        appended = self._stream(command).append(
            data, seq=None if seq is None else str(seq), idempotent=True, producer=claim
        )
        return {
            "status": 200,
            "offset": appended.next_offset,
            "duplicate": appended.duplicate,
            **self._sent(),
        }

    def do_read(self, command: Command) -> Result:
        offset = command.get("offset", "-1")
        live = command.get("live", False)
        stream = self._stream(command)
        if live is False:
            return {**collect(stream.read(offset), 100, wait=True), **self._sent()}
        how = cast("Live", "auto" if live is True else live)
        following = stream.follow(offset, live=how)
        timer = threading.Timer(command.get("timeoutMs", 5000) / 1000, following.stop)
        timer.start()
        try:
            maximum = command.get("maxChunks", 100)
            wait = command.get("waitForUpToDate", False)
            result = {**collect(following, maximum, wait=wait), **self._sent()}
            if live == "long-poll" and not result["chunks"] and not result["streamClosed"]:
                result["status"] = 204  # what the server answers when nothing came in time
            return result
        finally:
            timer.cancel()
            following.stop()

    def do_delete(self, command: Command) -> Result:
        self._stream(command).delete()
        self._content_types.pop(command["path"], None)
        return {"status": 200}

    def do_close(self, command: Command) -> Result:
        data = command.get("data")
        closed = self._stream(command).close(
            None if data is None else data.encode(), content_type=command.get("contentType")
        )
        return {"finalOffset": closed.next_offset}

    def do_idempotent_append(self, command: Command) -> Result:
        producer = self._producer(command)
        delivery = producer.append(command["data"].encode())
        producer.flush()
        appended = delivery.result()
        return {"status": 200, "offset": appended.next_offset, "producerSeq": appended.producer_seq}

    def do_idempotent_append_batch(self, command: Command) -> Result:
        # More than one batch under way needs more than one batch.
        in_flight = command.get("maxInFlight", 1)
        options = {"max_in_flight": in_flight, "linger": 0.005}
        if in_flight > 1:
            options["max_batch_items"] = 1
        with Producer(
            self._stream(command),
            command["producerId"],
            epoch=command.get("epoch", 0),
            auto_claim=command.get("autoClaim", False),
            **options,
        ) as producer:
            for item in command["items"]:
                producer.append(item.encode())
        return {"status": 200}

    def do_idempotent_close(self, command: Command) -> Result:
        key, data = self._key(command), command.get("data")
        if data is None and key in self._closings:
            return self._closings[key]  # this producer has closed it: once more changes nothing
        producer = self._producer(command)
        del self._producers[key]
        if data is not None:
            producer.append(data.encode())
        try:
            closed = producer.close(close_stream=True)
        except errors.ProducerReused:
            # The same producer had closed it with the same number, before this process began.
            closed = self._stream(command).close()
        result = {"status": 200, "finalOffset": closed.next_offset if closed is not None else ""}
        self._closings[key] = result
        return result

    def do_idempotent_detach(self, command: Command) -> Result:
        producer = self._producers.pop(self._key(command), None)
        if producer is not None:
            producer.close()
        return {"status": 200}

    def do_set_dynamic_header(self, command: Command) -> Result:
        self._headers[command["name"]] = Dynamic(command)
        return {}

    def do_set_dynamic_param(self, command: Command) -> Result:
        self._params[command["name"]] = Dynamic(command)
        return {}

    def do_clear_dynamic(self, _command: Command) -> Result:
        self._headers.clear()
        self._params.clear()
        return {}

    def do_validate(self, command: Command) -> Result:
        target = command["target"]
        if target["target"] == "retry-options":
            Retry(
                attempts=target.get("maxRetries", 3) + 1,
                first_delay=target.get("initialDelayMs", 100) / 1000,
                max_delay=target.get("maxDelayMs", 60_000) / 1000,
                multiplier=target.get("multiplier", 2.0),
            )
            return {}
        Producer(
            Client(self._url).stream("validate", content_type="text/plain"),
            target.get("producerId", "producer"),
            epoch=target.get("epoch", 0),
            max_batch_bytes=target.get("maxBatchBytes", 1024),
            max_batch_items=target.get("maxBatchItems", 10),
        ).abandon()
        return {}

    def do_benchmark(self, command: Command) -> Result:
        operation = command["operation"]
        work: Callable[[Command], dict[str, int]] = getattr(self, "bench_" + operation["op"])
        began = time.perf_counter_ns()
        metrics = work(operation)
        duration = time.perf_counter_ns() - began
        return {
            "iterationId": command["iterationId"],
            "durationNs": str(duration),
            "metrics": metrics,
        }

    def bench_append(self, operation: Command) -> dict[str, int]:
        self._stream(operation).append(os.urandom(operation["size"]))
        return {"bytesTransferred": operation["size"]}

    def bench_read(self, operation: Command) -> dict[str, int]:
        reading = self._stream(operation).read(operation.get("offset", "-1"))
        return {"bytesTransferred": sum(map(len, reading.bytes()))}

    def bench_create(self, operation: Command) -> dict[str, int]:
        self._stream(operation).create(operation.get("contentType", "application/octet-stream"))
        return {}

    def bench_roundtrip(self, operation: Command) -> dict[str, int]:
        stream = self._stream(operation)
        created = stream.create(operation.get("contentType", "application/octet-stream"))
        text = b"x" * operation["size"]
        json_text = b'"' + text + b'"' if created.content_type == "application/json" else text
        stream.append(json_text)
        following = stream.follow(live=operation.get("live", "long-poll"))
        next(following.bytes())
        following.stop()
        return {"bytesTransferred": 2 * operation["size"]}

    def bench_throughput_append(self, operation: Command) -> dict[str, int]:
        stream = self._stream(operation)
        text = "x" * operation["size"]
        item = text if stream.content_type() == "application/json" else text.encode()
        with Producer(stream, f"bench-{time.time_ns()}") as producer:
            for _ in range(operation["count"]):
                producer.append(item)
        size = operation["count"] * operation["size"]
        return {"bytesTransferred": size, "messagesProcessed": operation["count"]}

    def bench_throughput_read(self, operation: Command) -> dict[str, int]:
        reading = self._stream(operation).read()
        size = count = 0
        for batch in reading:
            size += len(batch.data)
            count += len(batch.items()) if batch.is_json else 1
        return {"bytesTransferred": size, "messagesProcessed": count}

    def do_shutdown(self, _command: Command) -> Result:
        for producer in self._producers.values():
            producer.abandon()
        for client in self._clients:
            client.close()
        return {}

    def _stream(self, command: Command) -> Stream:
        client = Client(
            self._url,
            headers={**self._headers, **command.get("headers", {})},
            params=self._params,
            retry=Retry(attempts=6, first_delay=0.1, max_delay=1.0),
        )
        self._clients.append(client)
        path = command["path"]
        return client.stream(self._url + path, content_type=self._content_types.get(path))

    def _producer(self, command: Command) -> Producer:
        key = self._key(command)
        if key not in self._producers:
            self._producers[key] = Producer(
                self._stream(command),
                command["producerId"],
                epoch=command.get("epoch", 0),
                auto_claim=command.get("autoClaim", False),
            )
        return self._producers[key]

    def _key(self, command: Command) -> tuple[str, str, int]:
        return command["path"], command["producerId"], command.get("epoch", 0)

    def _sent(self) -> Result:
        sent: Result = {}
        if self._headers:
            sent["headersSent"] = {name: value.last for name, value in self._headers.items()}
        if self._params:
            sent["paramsSent"] = {name: value.last for name, value in self._params.items()}
        return sent


def collect(reading: Reading, maximum: int, *, wait: bool) -> Result:
    """Gather chunks until there are enough, the end is reached, or time is up."""
    chunks: list[Result] = []
    result: Result = {"status": 200, "upToDate": True, "streamClosed": False}
    for batch in reading:
        result |= {
            "upToDate": batch.up_to_date,
            "streamClosed": batch.closed,
            "cursor": batch.cursor,
        }
        if not batch.empty:
            if batch.is_json:
                batch.items()  # says where it is not JSON
            chunks.append(chunk(batch.data, batch.next_offset))
        if len(chunks) >= maximum:
            break
        if wait and batch.up_to_date and isinstance(reading, Following):
            break
    return {**result, "chunks": chunks, "offset": reading.offset}


def chunk(data: bytes, offset: str) -> Result:
    """Give text as it is, other bytes in base64."""
    try:
        return {"data": data.decode(), "offset": offset}
    except UnicodeDecodeError:
        return {"data": base64.b64encode(data).decode(), "binary": True, "offset": offset}


def failed(kind: str, code: str, error: Exception | str, status: int | None = None) -> Result:
    """Make the result of a command that failed."""
    result = {
        "type": "error",
        "success": False,
        "commandType": kind,
        "errorCode": code,
        "message": str(error),
    }
    return result if status is None else {**result, "status": status}


def main() -> None:
    """Answer commands until there are no more."""
    adapter = Adapter()
    for line in sys.stdin:
        if not line.strip():
            continue
        command = json.loads(line)
        print(json.dumps(adapter.handle(command)), flush=True)  # noqa: T201 - the protocol
        if command["type"] == "shutdown":
            return


if __name__ == "__main__":
    main()
