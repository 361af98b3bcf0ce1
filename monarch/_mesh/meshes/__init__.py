"""Arrays of hosts, processes and actors, as programs hold them."""
