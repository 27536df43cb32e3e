"""The daemon around the swarm library: process, local API, command line."""

__version__ = "0.1.0"
