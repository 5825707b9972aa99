"""Private records come in here: types, keys, chunks, labels, files."""
