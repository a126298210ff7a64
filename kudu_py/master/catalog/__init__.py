"""The catalog as a functional core.

`entries` are the records, `state` is all of them in memory, a `change` is one atomic batch of new records. Planners
(`table_ops`, `report_ops`, `nudge_ops`, `replica_ops`, `operation_ops`, `placement`, `balance`) are functions from a
state and a request to a change or to work that should be done; they wait for nothing and know neither clock, chance nor
network but as arguments. `committer` is the only writer.
"""
