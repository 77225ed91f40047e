"""Faults that attacks and bug reports of other programs have shown: a file for each, numbered; played again in each form it can take."""
