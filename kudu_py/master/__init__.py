"""The master: the catalog of tables and tablets, kept in a replicated tablet of its own, and the care for tablet servers."""
