"""Bytes from outside become frozen objects here, once, with limits checked before anything is allocated."""
