"""The Tensor's methods that speak of gradients and history, bound where what they need stands below."""
