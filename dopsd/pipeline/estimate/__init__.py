"""What a run costs: operations, hours, memory; and a rehearsal of it with a toy."""
