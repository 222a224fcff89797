"""Tests that are coroutines run in virtual time, for at most three days of it."""

import asyncio

from tests.support.coroutine_tests import run_by
from tests.support.virtual_time import run

pytest_pyfunc_call = run_by(lambda test: run(asyncio.wait_for(test, 72 * 3600)))
