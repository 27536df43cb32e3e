"""Whom this node has to do with: bans of its owner, and callers that are refused for a while."""
