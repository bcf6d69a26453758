"""Sums of gradients: which wait for the end of a loop (`delay_sums`), and which become one array (`pack_sums`)."""
