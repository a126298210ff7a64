"""Raft between the replicas of a tablet: a synchronous machine (`core`) inside thin asyncio drivers.

Public: `RaftConsensus` and the `StateMachine` it drives, `Entry`, `Round`, `ConsensusMetadata`, `read_bootstrap`,
`PeerLinks`, `ReplicaLookup` and `ConsensusServicer`. Everything else serves these.
"""
