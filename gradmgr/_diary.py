"""What a traced recording leaves behind: `GradManager.summary` and `GradManager.explain`."""
