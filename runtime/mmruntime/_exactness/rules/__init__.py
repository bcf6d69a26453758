"""Rules: what one operation makes of the abstract values that it reads, by subject."""
