"""Try to refute a privacy claim: draw again and again, and look for too much."""
