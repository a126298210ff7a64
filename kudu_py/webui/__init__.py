"""Status pages, health and metrics over HTTP, served by both daemons on their event loop."""
