"""Django's migrations of the app."""
