"""What may still change."""
