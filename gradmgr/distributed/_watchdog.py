"""What ends a wait: the timeout, and the failure of another rank."""
