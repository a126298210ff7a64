"""The Raft state machine: synchronous, no I/O, no clock, no logging, no protobuf.

One door in, one value out: `Raft.step(now, event) -> Output`.

`model`, `events` and `output` are the values it speaks in. `raft` dispatches; the decisions are functions of an
explicit `state` in `reconfiguration`, `election`, `replication` and `membership`, each of which stands on those behind
it, and all on `transitions`. `config_request` says what a caller's wish makes of a config. `log_view`, `progress`,
`reads` and `quorum` are the small parts below; `invariants` says what holds between any two steps.
"""
