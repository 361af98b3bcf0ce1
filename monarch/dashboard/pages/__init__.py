"""The data of the dashboard's pages: SQL, and the shapes of its rows as JSON."""
