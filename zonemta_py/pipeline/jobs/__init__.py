"""The jobs: each reads, applies transforms and writes. Decisions are in ``transforms`` and ``rules``."""
