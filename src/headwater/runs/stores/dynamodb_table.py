"""A table of DynamoDB: its calls in threads, and what their failures mean."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from headwater.errors import RunStoreUnavailable, StoreNotOpen
from headwater.runs.stores.dynamodb_items import BY_CHANGE, BY_CREATION, Item

_THREADS: Final = 16
_ACTIVE_SECONDS: Final = 120
_BATCH_GET: Final = 100
_BATCH_WRITE: Final = 25
_BUSY: Final = frozenset(
    {
        "TransactionConflict",
        "TransactionConflictException",
        "TransactionInProgressException",
        "ThrottlingError",
        "ThrottlingException",
        "ProvisionedThroughputExceeded",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
    }
)
"""Codes of what may be tried again after a while: nothing was written."""


class Refusal(NamedTuple):
    """Why an item of a transaction did not go through."""

    unmet: bool
    """Whether its condition failed; otherwise someone was in the way."""
    found: Item
    """What is there instead."""


class Table:
    """One table; one instance belongs to one event loop."""

    def __init__(self, name: str, region: str | None, endpoint: str | None) -> None:
        self.name = name
        self._region = region
        self._endpoint = endpoint
        self._threads: ThreadPoolExecutor | None = None
        self._client: Any = None

    @property
    def is_open(self) -> bool:
        return self._threads is not None

    async def open(self) -> None:
        """Connect, and make the table where it is missing."""
        threads = ThreadPoolExecutor(_THREADS, "runs-dynamodb")
        try:
            await asyncio.get_running_loop().run_in_executor(threads, self._connect)
        except BaseException:
            threads.shutdown(wait=False)
            raise
        self._threads = threads

    def _connect(self) -> None:
        try:
            self._client = boto3.session.Session().client(
                "dynamodb",
                region_name=self._region,
                endpoint_url=self._endpoint,
                config=Config(
                    connect_timeout=5,
                    read_timeout=15,
                    retries={"mode": "standard", "total_max_attempts": 4},
                    max_pool_connections=_THREADS,
                ),
            )
            self._make()
        except (BotoCoreError, ClientError) as error:
            raise self.unavailable(error) from error

    def _make(self) -> None:
        until = time.monotonic() + _ACTIVE_SECONDS
        while True:
            try:
                state = self._client.describe_table(TableName=self.name)["Table"]["TableStatus"]
                if state == "ACTIVE":
                    return
            except ClientError as error:
                if _code(error) != "ResourceNotFoundException":
                    raise
                self._create()
            if time.monotonic() > until:
                raise RunStoreUnavailable(f"DynamoDB table {self.name}", "it is not active yet")
            time.sleep(0.2)

    def _create(self) -> None:
        def index(name: str, by: str) -> dict[str, Any]:
            return {
                "IndexName": name,
                "KeySchema": [
                    {"AttributeName": "shard", "KeyType": "HASH"},
                    {"AttributeName": by, "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "ALL"},
            }

        names = ("run", "item", "shard", "changed", "created")
        try:
            self._client.create_table(
                TableName=self.name,
                BillingMode="PAY_PER_REQUEST",
                KeySchema=[
                    {"AttributeName": "run", "KeyType": "HASH"},
                    {"AttributeName": "item", "KeyType": "RANGE"},
                ],
                AttributeDefinitions=[
                    {"AttributeName": name, "AttributeType": "S"} for name in names
                ],
                GlobalSecondaryIndexes=[
                    index(BY_CHANGE, "changed"),
                    index(BY_CREATION, "created"),
                ],
            )
        except ClientError as error:
            if _code(error) != "ResourceInUseException":  # someone else makes it
                raise

    async def close(self) -> None:
        """Finish what is under way and let go of everything."""
        threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.to_thread(threads.shutdown)
            self._client.close()

    async def _call(self, operation: str, **request: Any) -> Any:
        if self._threads is None:
            raise StoreNotOpen
        call = getattr(self._client, operation)
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, lambda: call(**request)
            )
        except (BotoCoreError, RuntimeError) as error:
            # RuntimeError: the threads were shut down while this call was on its way.
            raise self.unavailable(error) from error

    async def transact(self, writes: Sequence[dict[str, Any]]) -> list[Refusal | None] | None:
        """Write all items or none; None where they are written, else why not, one by one."""
        request = [
            {kind: {"TableName": self.name, **write} for kind, write in each.items()}
            for each in writes
        ]
        try:
            await self._call("transact_write_items", TransactItems=request)
        except ClientError as error:
            if _code(error) == "TransactionCanceledException":
                return [
                    self._refusal(each, error) for each in error.response["CancellationReasons"]
                ]
            if _code(error) in _BUSY:
                return [Refusal(unmet=False, found={}) for _ in writes]
            raise self.unavailable(error) from error
        return None

    def _refusal(self, reason: dict[str, Any], error: ClientError) -> Refusal | None:
        code = reason.get("Code", "None")
        if code == "None":
            return None
        if code == "ConditionalCheckFailed":
            return Refusal(unmet=True, found=reason.get("Item") or {})
        if code in _BUSY:
            return Refusal(unmet=False, found={})
        raise self.unavailable(error) from error

    async def change(self, operation: str, **request: Any) -> Refusal | None:
        """Write one item where its condition holds; None where it did."""
        try:
            await self._call(
                operation,
                TableName=self.name,
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **request,
            )
        except ClientError as error:
            if _code(error) == "ConditionalCheckFailedException":
                found: Item = error.response.get("Item") or {}
                return Refusal(unmet=True, found=found)
            if _code(error) in _BUSY:
                return Refusal(unmet=False, found={})
            raise self.unavailable(error) from error
        return None

    async def get(self, keys: Sequence[Item]) -> list[Item]:
        """Read items as they are now; those that are not there are left out."""
        found: list[Item] = []
        for start in range(0, len(keys), _BATCH_GET):
            left = list(keys[start : start + _BATCH_GET])
            while left:
                answer = await self._ask(
                    "batch_get_item",
                    RequestItems={self.name: {"Keys": left, "ConsistentRead": True}},
                )
                found += answer["Responses"].get(self.name, [])
                left = answer.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys", [])
        return found

    async def query(self, limit: int | None = None, **request: Any) -> list[Item]:
        """Read items in their order, up to a limit, over as many pages as it takes."""
        found: list[Item] = []
        while True:
            if limit is not None and "FilterExpression" not in request:
                request["Limit"] = limit - len(found)
            answer = await self._ask("query", TableName=self.name, **request)
            found += answer["Items"]
            if "LastEvaluatedKey" not in answer or (limit is not None and len(found) >= limit):
                return found[:limit]
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    async def delete(self, keys: Iterable[Item]) -> None:
        """Delete items, each by itself."""
        waiting = [{"DeleteRequest": {"Key": key}} for key in keys]
        while waiting:
            batch, waiting = waiting[:_BATCH_WRITE], waiting[_BATCH_WRITE:]
            answer = await self._ask("batch_write_item", RequestItems={self.name: batch})
            waiting += answer.get("UnprocessedItems", {}).get(self.name, [])

    async def _ask(self, operation: str, **request: Any) -> Any:
        try:
            return await self._call(operation, **request)
        except ClientError as error:
            raise self.unavailable(error) from error

    def unavailable(self, error: Exception) -> RunStoreUnavailable:
        """Say what a failure means to whoever called."""
        reason = " ".join(str(error).split()).rstrip(".")
        return RunStoreUnavailable(f"DynamoDB table {self.name}", reason)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
