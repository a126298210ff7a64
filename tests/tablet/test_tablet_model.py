"""Random operations on a tablet and on a dict of versions.

Same answers, same snapshots, whatever is flushed in between.
"""

from __future__ import annotations

import datetime
import decimal
import random

import pytest

from kudu_py.common.row_batch import RowOperation
from kudu_py.common.schema import ColumnSchema, DataType, Schema
from kudu_py.testing.tablet_model import TabletModel
from kudu_py.testing.tablet_rig import SIMPLE_SCHEMA, TabletRig, batch_of

_UTC = datetime.UTC
_VALUE_TYPES = {
    DataType.BOOL: lambda r: r.random() < 0.5,
    DataType.INT8: lambda r: r.randrange(-128, 128),
    DataType.INT16: lambda r: r.randrange(-(1 << 15), 1 << 15),
    DataType.INT32: lambda r: r.randrange(-(1 << 31), 1 << 31),
    DataType.INT64: lambda r: r.randrange(-(1 << 63), 1 << 63),
    DataType.FLOAT: lambda r: r.choice([0.0, 1.5, -2.25, float("inf")]),
    DataType.DOUBLE: lambda r: r.choice([0.0, r.random(), -1e300, float("-inf")]),
    DataType.STRING: lambda r: "é" * r.randrange(4) + "x" * r.randrange(20),
    DataType.VARCHAR: lambda r: "v" * r.randrange(10),
    DataType.BINARY: lambda r: bytes(r.randrange(3)) + r.randbytes(r.randrange(12)),
    DataType.UNIXTIME_MICROS: lambda r: (
        datetime.datetime(2020, 1, 1, tzinfo=_UTC) + datetime.timedelta(microseconds=r.randrange(-(10**12), 10**12))
    ),
    DataType.DATE: lambda r: datetime.date(2000, 1, 1) + datetime.timedelta(days=r.randrange(-9999, 9999)),
    DataType.DECIMAL: lambda r: decimal.Decimal(r.randrange(-(10**20), 10**20)).scaleb(-3),
}


def _column(name, kind, number, **more):
    if kind is DataType.DECIMAL:
        more.update(precision=22, scale=3)
    if kind is DataType.VARCHAR:
        more.update(length=30)
    return ColumnSchema(name, kind, column_id=number, **more)


def _wide_schema():
    keys = [DataType.STRING, DataType.INT16, DataType.BINARY]
    columns = [_column(f"k{i}", kind, i) for i, kind in enumerate(keys)]
    columns += [_column(f"v{i}", kind, 10 + i, nullable=True) for i, kind in enumerate(_VALUE_TYPES)]
    columns.append(ColumnSchema("d", DataType.INT32, default=7, column_id=40))
    columns.append(ColumnSchema("s", DataType.STRING, default="none", column_id=41))
    return Schema(tuple(columns), key_count=3)


def _key_schema(kind):
    return Schema(
        (
            _column("k", kind, 3),
            _column("v", DataType.STRING, 1, nullable=True),
            _column("w", DataType.INT64, 2, nullable=True),
        ),
        key_count=1,
    )


def _two_key_schema():
    return Schema(
        (
            _column("a", DataType.INT32, 0),
            _column("b", DataType.UNIXTIME_MICROS, 1),
            _column("v", DataType.DOUBLE, 2, nullable=True),
        ),
        key_count=2,
    )


class _Driver:
    def __init__(self, directory, schema, seed, key_space):
        self.rng = random.Random(seed)
        self.rig = TabletRig(directory, schema)
        self.model = TabletModel(schema)
        self.schema = schema
        self.keys = [self._new_key() for _ in range(key_space)]
        self.digests = {}
        self.history_start = 0

    def _value(self, column):
        if column.nullable and self.rng.random() < 0.15:
            return None
        return _VALUE_TYPES[column.type](self.rng)

    def _new_key(self):
        return tuple(_VALUE_TYPES[column.type](self.rng) for column in self.schema.key_columns)

    def batch(self):
        rng, schema = self.rng, self.schema
        n = rng.choice([1, 1, 2, 5, 9, 40, 200])
        single = rng.random() < 0.6
        operations = (
            [rng.choice(list(RowOperation))] * n if single else [rng.choice(list(RowOperation)) for _ in range(n)]
        )
        positions = list(range(len(schema.columns)))
        unset = None
        mode = rng.random()
        if mode < 0.3:
            # Leaves columns out that may be left out.
            optional = [p for p in positions if p >= schema.key_count]
            kept = [p for p in optional if rng.random() < 0.5]
            positions = [*range(schema.key_count), *kept]
        elif mode < 0.6:
            unset = [[p >= schema.key_count and rng.random() < 0.4 for p in positions] for _ in range(n)]
        rows = [rng.choice(self.keys) for _ in range(n)]
        columns = []
        for p in positions:
            column = schema.columns[p]
            columns.append([row[p] for row in rows] if p < schema.key_count else [self._value(column) for _ in rows])
        return batch_of(schema, operations, columns, positions=positions, unset=unset)

    def write(self):
        batch = self.batch()
        result = self.rig.apply(batch)
        assert list(result.row_errors) == self.model.apply(batch, self.rig.timestamp)
        if self.rng.random() < 0.3:
            self.digests[self.rig.timestamp] = self.rig.tablet.digest(self.rig.timestamp)

    def check(self, timestamp):
        expected = self.model.rows_at(timestamp)
        got = self.rig.rows(timestamp)
        key = lambda row: repr(row[: self.schema.key_count])  # noqa: E731
        assert sorted(got, key=key) == sorted(expected, key=key)
        if timestamp in self.digests:
            assert self.rig.tablet.digest(timestamp) == self.digests[timestamp]

    def check_some(self):
        self.check(self.rig.timestamp)
        assert self.rig.tablet.row_count == len(self.model.rows_at(self.rig.timestamp))
        for timestamp in self.rng.sample(sorted(self.digests), min(3, len(self.digests))):
            if timestamp >= self.history_start:
                self.check(timestamp)

    def maintain(self):
        rng = self.rng
        meanwhile = (lambda: [self.write() for _ in range(rng.randrange(4))]) if rng.random() < 0.5 else (lambda: None)
        act = rng.random()
        if act < 0.45:
            self.rig.flush(meanwhile)
        elif act < 0.8:
            if rng.random() < 0.5:
                self.history_start = max(self.history_start, self.rig.timestamp - rng.choice([0, 50, 300]))

            def both():
                meanwhile()
                if rng.random() < 0.5:
                    self.rig.flush(meanwhile)

            self.rig.compact(self.history_start, both)
        else:
            self.rig.reopen()


_SCHEMAS = {
    "simple": lambda: SIMPLE_SCHEMA,
    "two keys": _two_key_schema,
    "wide": _wide_schema,
    **{
        f"key {kind.value}": (lambda kind=kind: _key_schema(kind))
        for kind in (
            DataType.INT8,
            DataType.INT16,
            DataType.INT32,
            DataType.INT64,
            DataType.STRING,
            DataType.VARCHAR,
            DataType.BINARY,
            DataType.UNIXTIME_MICROS,
            DataType.DATE,
            DataType.DECIMAL,
        )
    },
}


@pytest.mark.parametrize("name", _SCHEMAS)
@pytest.mark.parametrize("seed", range(3))
def test_a_tablet_is_a_dict_of_versions(tmp_path, name, seed):
    driver = _Driver(str(tmp_path), _SCHEMAS[name](), f"{name}/{seed}", key_space=60 if seed else 400)
    for _ in range(60):
        driver.write()
        if driver.rng.random() < 0.35:
            driver.maintain()
        if driver.rng.random() < 0.3:
            driver.check_some()
    driver.check_some()
    while driver.rig.compact(driver.history_start):
        driver.check_some()
    driver.rig.reopen()
    driver.check_some()
