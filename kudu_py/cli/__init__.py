"""The one command, `kudu-py`, in upstream's groups: one file per group."""
