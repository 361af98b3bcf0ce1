"""One message for the actors of many hosts, and their answers."""
