"""Loops of layers, microbatches and scans."""
