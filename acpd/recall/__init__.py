"""What an agent may look up of the past: its tools, and the requests of its link that answer them."""
