"""Environment files: their settings, the rules for these, and the names and documents that are derived from them."""
