"""Panels and published models over HTTP."""
