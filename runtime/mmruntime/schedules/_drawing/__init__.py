"""Pictures of schedules and simulated steps, as text, SVG and HTML pages."""
