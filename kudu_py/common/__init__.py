"""The vocabulary shared by every layer: values and errors, no I/O.

Exports nothing on purpose: using `OpId` must not pull in Arrow or protobuf.
"""
