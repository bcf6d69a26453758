"""What will run where: placement read from the source or traced, as sections and as a page."""
