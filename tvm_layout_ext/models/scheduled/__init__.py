"""What schedules a function of a model: asked here, in other processes, or found on disk."""
