"""Peers: identity, streams between them, and the directory of who serves what. The only room that imports hivemind."""
