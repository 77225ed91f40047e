"""How bytes reach a receiving server."""
