"""A replica of one tablet: its rows (the row engine), its metadata, its life."""
