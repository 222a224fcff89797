"""What an environment file is: its settings, their rules, and what follows from them."""
