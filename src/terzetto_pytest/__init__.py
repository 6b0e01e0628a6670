"""The pytest plugin of Terzetto; it imports neither Trio nor Terzetto until a test uses it."""

from ._plugin import (
    pytest_addoption as pytest_addoption,
    pytest_configure as pytest_configure,
    pytest_generate_tests as pytest_generate_tests,
    pytest_pyfunc_call as pytest_pyfunc_call,
    terzetto_engine as terzetto_engine,
    terzetto_seed as terzetto_seed,
    terzetto_stage as terzetto_stage,
)
