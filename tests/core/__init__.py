"""Tests of zonemta_py.core."""
