"""GradScaler: gradients of half-precision losses, scaled to stay above underflow."""
