"""Files: atomic writes, locks, build folders, bounded reading."""
