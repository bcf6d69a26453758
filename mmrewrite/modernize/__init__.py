"""The paths by which other packages import from `mmmodernize`, of before it was a package of its own."""
