"""Where Spark finds everything: the format `headwater`."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headwater.errors import BadOption
from headwater.spark.batch_reader import BatchReader, FilteringReader
from headwater.spark.columns import default_schema
from headwater.spark.options import sink_options, source_options
from headwater.spark.sink import BatchWriter, StreamWriter
from headwater.spark.stream_reader import StreamReader
from headwater.spark_daemon import end_in_silence

end_in_silence()  # where Spark imports this to look it up, or to plan with it


class HeadwaterDataSource(DataSource):
    """Streams of a Headwater server as tables."""

    @classmethod
    def name(cls) -> str:
        return "headwater"

    def schema(self) -> StructType:
        return default_schema(source_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = source_options(self.options)
        return (FilteringReader if options.push_filters else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = source_options(self.options)
        if options.ending != "latest":
            raise BadOption("endingOffsets", "a streaming query has no end; use spark.read")
        if options.push_filters:
            raise BadOption("pushFilters", "a streaming query takes none; use spark.read")
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise BadOption("mode", "a stream is only ever appended to: use mode('append')")
        return BatchWriter(sink_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        if overwrite:
            raise BadOption("outputMode", "a stream is only ever appended to: use 'append'")
        return StreamWriter(sink_options(self.options), schema)
