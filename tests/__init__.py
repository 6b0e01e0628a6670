"""The test suite: a package, so that tests share helpers as `tests.strategies` and the like."""
