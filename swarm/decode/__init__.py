"""The sans-I/O decoder: canvas, block schedule, commit policies, events.

Pure: no I/O, no waiting, no clock, no hidden randomness. Drivers elsewhere ask it what it wants and feed it score rows.
"""
