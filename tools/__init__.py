"""Tools of the project: what its developers run beside the tests."""
