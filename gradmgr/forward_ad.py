"""Forward mode: tangents beside values, pushed along as the operations happen."""
