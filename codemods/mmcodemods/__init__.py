"""The codemods of mmrewrite, one in each module."""
