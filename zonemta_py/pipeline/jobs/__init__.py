"""The jobs: read, a chain of transforms, write. What is decided is in ``transforms``."""
