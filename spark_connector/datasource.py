"""`KuduDataSource`: name, schema, reader, writer.

Spark calls every hook in a Python process of its own, with nothing shared between them but what is pickled: options and
schema here, plain strings and bytes in partitions and commit messages. Reader and writer, which need pyarrow, are
imported when one is made: the process in which Spark looks up names of sources imports this module and no more.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader
from pyspark.sql.types import StructField, StructType

from spark_connector.cluster import TableView, open_table
from spark_connector.options import KuduOptions, parse
from spark_connector.type_mapping import to_spark


class KuduDataSource(DataSource):
    """`format("kudu")`: batch reads and writes of one table."""

    @classmethod
    def name(cls) -> str:
        """What users write in `format(...)`."""
        return "kudu"

    def schema(self) -> StructType:
        """The table's columns (those of `kudu.columns` if given), keys marked as not nullable."""
        options = parse(self.options)
        return spark_schema(open_table(options), options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader; a schema that the user gave may be a part of the table's columns, in any order.

        Raises:
            ValueError: names the column that the table lacks or has as another type.
        """
        from spark_connector.reader import KuduReader

        options = parse(self.options)
        view = open_table(options)
        if not schema.fields:
            raise ValueError(
                f"the schema of the read has no columns, and Spark takes no rows without columns: give one column of "
                f"table {view.name}, such as {view.columns[0].name!r}"
            )
        _check_user_schema(spark_schema(view, options, every=True), schema, view.name)
        return KuduReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer for frames of this schema; every misuse is refused here, before a task starts.

        Raises:
            ValueError: says what does not fit and what to do.
        """
        from spark_connector.writer import KuduWriter, check_frame

        options = parse(self.options)
        if overwrite:
            raise ValueError(
                'mode("overwrite") is not supported: a table is not replaced by a write. Use mode("append"); to start '
                "afresh, delete the table and create it again"
            )
        check_frame(open_table(options), schema, options)
        return KuduWriter(options)


def spark_schema(view: TableView, options: KuduOptions, *, every: bool = False) -> StructType:
    """The Spark schema of a read with these options.

    Raises:
        ValueError: names a column of `kudu.columns` that the table lacks.
    """
    by_name = {
        column.name: StructField(
            column.name,
            to_spark(column.type_name, column.precision, column.scale),
            column.nullable,
            {"kudu.key": True} if column.is_key else {},
        )
        for column in view.columns
    }
    names = options.columns if options.columns and not every else tuple(by_name)
    if len(set(names)) != len(names):
        raise ValueError(f"option kudu.columns has a column twice: {', '.join(names)}")
    for name in names:
        if name not in by_name:
            raise ValueError(f"table {view.name} has no column {name!r}; it has {', '.join(by_name)}")
    return StructType([by_name[name] for name in names])


def _check_user_schema(table: StructType, wanted: StructType, name: str) -> None:
    fields = {field.name: field for field in table.fields}
    for field in wanted.fields:
        if field.name not in fields:
            raise ValueError(f"table {name} has no column {field.name!r}; it has {', '.join(fields)}")
        if fields[field.name].dataType != field.dataType:
            raise ValueError(
                f"column {field.name!r} of table {name} is {fields[field.name].dataType.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )
        if fields[field.name].nullable and not field.nullable:
            raise ValueError(
                f"column {field.name!r} of table {name} may be null: it must be nullable in the schema, too"
            )
