"""Budgets that outlive every process, in SQLite or PostgreSQL."""
