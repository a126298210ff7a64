"""Tablet copy: a whole replica to another server, driven by the target (seed 002, "Follower Tablet Copy").

`source.py` pins what a session hands out, `service.py` answers for it; `client.py` fetches into a directory,
`landing.py` knows what of it is there already; `board.py` counts, bounds and shows the copies of a server,
`throttle.py` slows them.
Whoever puts what was fetched in place is the manager of replicas.
"""
