"""How property tests draw their examples.

By default they try the same ones every time, so that only a change of the code can make a test fail. The profile
``search`` draws new ones, and more: ``pytest -m hypothesis --hypothesis-profile search``.
"""

from hypothesis import HealthCheck, settings

MACHINE = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
}  # a busy machine is not a failure
settings.register_profile("fixed", derandomize=True, database=None, **MACHINE)
settings.register_profile("search", derandomize=False, max_examples=1000, print_blob=True, **MACHINE)
settings.load_profile("fixed")
