"""Pure functions from DataFrame to DataFrame, and the Arrow functions under them."""
