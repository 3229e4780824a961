"""`python -m pgqueue` is the command `pgqueue`."""

from .cli import main

main()
