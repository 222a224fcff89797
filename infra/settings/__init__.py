"""Environment files: their settings, the rules that settings must follow, and the names and documents derived from settings."""
