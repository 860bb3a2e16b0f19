"""Call a module with other parameters than its own."""
