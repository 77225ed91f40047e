"""Other stores than LevelDB, and the choice among them."""
