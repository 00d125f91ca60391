"""What becomes of rows: pure functions of DataFrames, and the Arrow functions under them."""
