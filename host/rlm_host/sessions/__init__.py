"""One actor per session; its journal is the truth, everything else is a fold of it."""
