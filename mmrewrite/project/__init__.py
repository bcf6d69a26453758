"""Facts of each module, imports between modules, what a step reaches, and axis names."""
