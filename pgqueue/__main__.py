"""The command `pgqueue`, also as `python -m pgqueue`: small, so that Ctrl-C is silent during the other imports."""

import signal
import sys


def main() -> None:
    """Import and run the command."""
    try:
        from .cli import main as run
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)  # as a shell reports it
    run()


if __name__ == "__main__":
    main()
