"""Which files a run reads, what patch it prints, and how it writes."""
