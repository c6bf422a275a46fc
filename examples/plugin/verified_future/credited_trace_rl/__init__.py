"""TraceRL whose advantages a teacher with a verified future spreads over tokens (own)."""
