"""The mechanics of a run: its folder, checkpoints, stopping, and its processes."""
