"""What tests of the page in a real browser share."""

import pytest

from services.gateway.page import assets
from tests import browser
from tests.waiting import PATIENCE_SECONDS

playwright = browser.require()
expect = playwright.expect
expect.set_options(timeout=PATIENCE_SECONDS * 1000)

IN_CHROMIUM = [
    pytest.mark.stack,
    pytest.mark.skipif(
        not assets.are_scripts_there(), reason="the page's scripts are not there: `make setup`"
    ),
    # Its driver is a process whose pipes are closed after the loop.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
