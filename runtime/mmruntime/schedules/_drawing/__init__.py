"""Pictures of schedules and simulated steps, as text, SVG and HTML pages.

`svg` draws, `page` and `document` frame it; `text_timeline` and `text_grid` are for terminals.
"""
