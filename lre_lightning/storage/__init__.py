"""Files written atomically, locks, templates of pages, and plain data checked before use."""
