"""The measured proof of a rewrite: both programs are run, and what they return is compared."""
