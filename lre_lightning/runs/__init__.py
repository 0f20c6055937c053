"""A run on disk and its processes: the run's folder, checkpoints, stopping, several devices."""
