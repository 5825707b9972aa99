"""Ways from private records to a published model, each a story of one page."""
