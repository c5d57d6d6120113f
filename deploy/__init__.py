"""How the service is run: on one machine, in containers, and under observation."""
