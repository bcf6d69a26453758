"""Of which class a value may be: an array, a module, an object of a library."""
