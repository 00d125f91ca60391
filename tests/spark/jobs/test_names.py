"""Jobs refuse names of nothing before they read or write anything."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headwater.errors import BadOption
from headwater.spark.archives.log import archive_folder
from headwater.spark.jobs.archive import archive
from headwater.spark.jobs.materialize import materialize
from headwater.spark.jobs.project import project
from headwater.spark.jobs.publish import publish
from headwater.spark.jobs.restore import restore
from headwater.spark.jobs.snapshot import snapshot
from headwater.spark.tables import open_table

URL = "http://127.0.0.1:9"
SOURCE: dict[str, Any] = {"url": URL, "stream": "in"}
FOLDERS: dict[str, Any] = {"tables": "t", "checkpoint": "c"}
PUBLISH: dict[str, Any] = {"url": URL, "stream": "out", "type": "t", "key": "id", "state": "s"}

BLANKS: dict[str, Callable[[SparkSession, str], Any]] = {
    "tables": lambda spark, blank: materialize(spark, SOURCE, **FOLDERS | {"tables": blank}),
    "checkpoint": lambda spark, blank: materialize(
        spark, SOURCE, **FOLDERS | {"checkpoint": blank}
    ),
    "schemas.user": lambda spark, blank: materialize(
        spark, SOURCE, **FOLDERS, schemas={"user": blank}
    ),
    "tables of project": lambda spark, blank: project(spark, SOURCE, **FOLDERS | {"tables": blank}),
    "checkpoint of project": lambda spark, blank: project(
        spark, SOURCE, **FOLDERS | {"checkpoint": blank}
    ),
    "publish": lambda spark, blank: project(spark, SOURCE, **FOLDERS, publish=blank),
    "folder of archive": lambda spark, blank: archive(spark, SOURCE, folder=blank, checkpoint="c"),
    "folder of restore": lambda spark, blank: restore(spark, folder=blank, url=URL),
    "stream of restore": lambda spark, blank: restore(spark, folder="f", url=URL, stream=blank),
    "stream of restored": lambda spark, blank: restore(
        spark, folder="f", url=URL, stream={"a": blank}
    ),
    "target": lambda spark, blank: snapshot(spark, SOURCE, target=blank),
    "stream of publish": lambda spark, blank: publish(
        spark, spark.range(1), **PUBLISH | {"stream": blank}
    ),
    "state": lambda spark, blank: publish(spark, spark.range(1), **PUBLISH | {"state": blank}),
    "folder": lambda _spark, blank: open_table(blank),
    "folder of archived": lambda _spark, blank: archive_folder(f"file://{blank}"),
}


@pytest.mark.parametrize("blank", ["", " "])
@pytest.mark.parametrize("name", BLANKS)
def test_a_blank_name_is_refused(spark: SparkSession, name: str, blank: str) -> None:
    with pytest.raises(BadOption) as refused:
        BLANKS[name](spark, blank)
    assert refused.value.name == name.partition(" ")[0]
