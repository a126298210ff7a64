"""The Raft state machine: synchronous, no I/O, no clock, no logging, no protobuf.

One door in, one value out: `Raft.step(now, event) -> Output`.
"""
