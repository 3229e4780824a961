# Generated from pgqueue/_async/__init__.py by tools/blocking.py: edit that file, not this one.

"""The awaiting shell, written by hand. The blocking one, _sync, is generated from it: see tools/blocking.py."""
