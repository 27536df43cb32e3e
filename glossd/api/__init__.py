"""The HTTP API of the daemon: native, OpenAI, admin. Served on the unix socket, and on loopback TCP when asked."""
