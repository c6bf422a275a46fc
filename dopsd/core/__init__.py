"""Values and tools that every other package uses; no models, no tasks."""
