"""Tests that are coroutines run in virtual time."""

from tests.support.virtual_time import pytest_pyfunc_call as pytest_pyfunc_call
