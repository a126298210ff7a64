"""`KuduContext`: the table and row calls that users of upstream's connector know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from pyspark.sql.types import StructType

from spark_connector.cluster import ColumnView, create_table, delete_table, kudu_schema, table_exists
from spark_connector.type_mapping import to_kudu

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import kudu_py.client as kudu


class HashPartitions(TypedDict):
    """Spread rows over `buckets` tablets by a hash of `columns` (key columns)."""

    columns: Sequence[str]
    buckets: int


class KuduContext:
    """A cluster as seen from the driver of a Spark program.

    Names are upstream's; each row call is a write of `format("kudu")` and returns when all rows are durable on a
    majority.
    """

    supportsIgnoreOperations = True
    """Every server of a cluster knows the `_ignore` operations."""

    def __init__(self, masters: str, spark: SparkSession) -> None:
        self.masters = masters
        self.spark = spark

    def tableExists(self, name: str) -> bool:
        """Whether there is a table of this name."""
        return table_exists(self.masters, name)

    def createSchema(self, schema: StructType, keys: Sequence[str]) -> kudu.Schema:
        """The schema of a table with the columns of a frame.

        `keys` become the primary key, in that order, and the first columns; they are not nullable whatever the frame
        says.

        Raises:
            ValueError: a key is no column, or a type no table can hold.
        """
        by_name = {field.name: field for field in schema.fields}
        for key in keys:
            if key not in by_name:
                raise ValueError(f"the key {key!r} is no column of the frame; it has {', '.join(by_name)}")
        order = [*keys, *[field.name for field in schema.fields if field.name not in keys]]
        return kudu_schema(
            [
                ColumnView(
                    name=column,
                    type_name=to_kudu(column, by_name[column].dataType),
                    precision=getattr(by_name[column].dataType, "precision", 0),
                    scale=getattr(by_name[column].dataType, "scale", 0),
                    nullable=by_name[column].nullable and column not in keys,
                    is_key=column in keys,
                    has_default=False,
                )
                for column in order
            ]
        )

    def createTable(
        self,
        name: str,
        schema: StructType | kudu.Schema,
        keys: Sequence[str] = (),
        *,
        hash_partitions: HashPartitions | None = None,
        num_replicas: int = 3,
    ) -> None:
        """Creates a table with the columns of a frame and returns when it can be written.

        Without `hash_partitions` the table is one tablet.

        Args:
            schema: of a frame; or of a table, as `createSchema` gives it, which has its keys already.
            keys: become the primary key, see `createSchema`.

        Raises:
            ValueError: a key is no column, or a type no table can hold.
        """
        if isinstance(schema, StructType):
            schema = self.createSchema(schema, keys)
        elif keys:
            raise ValueError("the schema of a table has its keys already; leave `keys` out")
        hashed = (tuple(hash_partitions["columns"]), hash_partitions["buckets"]) if hash_partitions else None
        create_table(self.masters, name, schema, hashed, num_replicas)

    def deleteTable(self, name: str) -> None:
        """Deletes a table and all its rows."""
        delete_table(self.masters, name)

    def kuduRDD(self, table: str, columns: Sequence[str] = ()) -> DataFrame:
        """The table's rows (a DataFrame: rows need not become Python objects)."""
        reader = self.spark.read.format("kudu").option("kudu.master", self.masters).option("kudu.table", table)
        return (reader.option("kudu.columns", ",".join(columns)) if columns else reader).load()

    def insertRows(self, frame: DataFrame, table: str) -> None:
        """Inserts rows whose keys are new; an error if one is there."""
        self.writeRows(frame, table, "insert")

    def insertIgnoreRows(self, frame: DataFrame, table: str) -> None:
        """Inserts rows whose keys are new, leaves the others alone."""
        self.writeRows(frame, table, "insert_ignore")

    def upsertRows(self, frame: DataFrame, table: str) -> None:
        """Inserts or updates."""
        self.writeRows(frame, table, "upsert")

    def updateRows(self, frame: DataFrame, table: str) -> None:
        """Updates rows whose keys are there; an error if one is not."""
        self.writeRows(frame, table, "update")

    def deleteRows(self, frame: DataFrame, table: str) -> None:
        """Deletes by key; an error if a key is not there. The frame has the key columns alone."""
        self.writeRows(frame, table, "delete")

    def deleteIgnoreRows(self, frame: DataFrame, table: str) -> None:
        """Deletes by key what is there."""
        self.writeRows(frame, table, "delete_ignore")

    def writeRows(self, frame: DataFrame, table: str, operation: str) -> None:
        """Writes with any operation by name."""
        writer = frame.write.format("kudu").option("kudu.master", self.masters).option("kudu.table", table)
        writer.option("kudu.operation", operation).mode("append").save()

    # The same by names as Python has them.
    supports_ignore_operations = supportsIgnoreOperations
    table_exists = tableExists
    create_schema = createSchema
    create_table = createTable
    delete_table = deleteTable
    kudu_rdd = kuduRDD
    insert_rows = insertRows
    insert_ignore_rows = insertIgnoreRows
    upsert_rows = upsertRows
    update_rows = updateRows
    delete_rows = deleteRows
    delete_ignore_rows = deleteIgnoreRows
    write_rows = writeRows
