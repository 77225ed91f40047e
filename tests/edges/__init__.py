"""Failures that were found by attack, by the numbers that docs/reliability.md gives them."""
