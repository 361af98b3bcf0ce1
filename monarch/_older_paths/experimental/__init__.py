"""Names that may still change."""
