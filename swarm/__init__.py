"""The library: everything a node does for the swarm. It never imports glossd, the daemon around it."""
