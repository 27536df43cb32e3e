"""The first lines of the daemon's process: `glossd run` becomes `python -m glossd.start JSON`.

Signals are held back before anything is imported, which takes a third of a second: one that comes so early is heard
when the daemon listens.
"""

import os
import signal
import sys

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    from glossd.daemon import main

    code = main()
    sys.stderr.flush()
    # All is closed by now, and the unloading of torch would take as long as the leaving.
    os._exit(code)
