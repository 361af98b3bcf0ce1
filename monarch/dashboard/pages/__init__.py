"""What the dashboard's pages are made of: SQL, and the shapes of its rows as JSON."""
