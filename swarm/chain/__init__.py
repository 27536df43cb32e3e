"""Calling: a score source that runs a request's passes over a chain of peers and survives their loss."""
