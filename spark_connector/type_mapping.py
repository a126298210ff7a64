"""Spark types to Kudu types and back."""

from __future__ import annotations

from pyspark.sql import types as T

_TO_KUDU: dict[type[T.DataType], str] = {
    T.BooleanType: "bool",
    T.ByteType: "int8",
    T.ShortType: "int16",
    T.IntegerType: "int32",
    T.LongType: "int64",
    T.FloatType: "float",
    T.DoubleType: "double",
    T.StringType: "string",
    T.BinaryType: "binary",
    T.TimestampType: "unixtime_micros",
    T.DateType: "date",
    T.DecimalType: "decimal",
}
_TO_SPARK: dict[str, T.DataType] = {name: kind() for kind, name in _TO_KUDU.items() if kind is not T.DecimalType} | {
    "varchar": T.StringType()
}


def to_spark(kudu_type: str, precision: int = 0, scale: int = 0) -> T.DataType:
    """The Spark type of a column: `kudu_type` is the type's name in lower case."""
    if kudu_type == "decimal":
        return T.DecimalType(precision, scale)
    return _TO_SPARK[kudu_type]


def to_kudu(column: str, spark_type: T.DataType) -> str:
    """The name of the Kudu type, in lower case.

    Raises:
        ValueError: names the column if no type of a table can hold it.
    """
    found = _TO_KUDU.get(type(spark_type))
    if found is None:
        raise ValueError(
            f"column {column!r} is {spark_type.simpleString()}, which no table column can hold; cast it to one of "
            f"{', '.join(kind().simpleString() for kind in _TO_KUDU)}"
        )
    return found
