"""Public feature maps: from the public points alone to integer vectors."""
