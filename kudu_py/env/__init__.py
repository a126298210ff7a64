"""The seams to the outside world and their real implementations: clock, disk, workers."""
