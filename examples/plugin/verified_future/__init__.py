"""An algorithm for dopsd whose teacher sees part of a verified future (own, experimental)."""
