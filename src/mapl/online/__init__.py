"""Teachers that stay: trained once, kept encrypted, asked while a budget lasts."""
