"""One teacher for each chunk, and their votes. Everything here is private."""
