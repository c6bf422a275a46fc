"""Values and tools that every package stands on: no models, no tasks."""
