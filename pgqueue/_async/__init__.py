"""The awaiting shell, written by hand. The blocking one, _sync, is generated from it: see tools/blocking.py."""
