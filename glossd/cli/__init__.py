"""The command line. It talks to the daemon through `glossd.client` only and loads what a command needs when it runs."""
