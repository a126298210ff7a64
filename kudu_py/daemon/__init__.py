"""What every process shares and no tablet knows: options, data directory, logs, metrics, and how a process runs."""
