"""What a relay offers to programs, end to end; each test says itself how many processes it wants."""
