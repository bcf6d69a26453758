"""The paths that codemods of other packages import from, of before `mmmodernize` was a package of its own."""
