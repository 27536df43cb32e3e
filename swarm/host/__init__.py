"""Serving: the span this node hosts, run for whoever asks."""
