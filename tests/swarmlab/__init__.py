"""The lab kit: real daemons on this machine, for tests, benches and the demo."""
