"""The door: here, and nowhere else, private values become public."""
