"""Where the checkout is, for tests of the files beside the package."""

from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
HELPERS = CHECKOUT / "tests" / "helpers"
