"""The page of the admin listener."""
