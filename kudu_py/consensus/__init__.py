"""Raft: the synchronous machine in `core`, and the asyncio drivers that carry out what it decides."""
